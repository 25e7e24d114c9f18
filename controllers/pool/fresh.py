"""Read-your-writes over a watch that lags: which readings are older than what we wrote ourselves."""

from collections.abc import Callable

# The watch is behind by milliseconds; a watch that is cut comes back within the reflector's longest pause. Past
# that, the watch is believed again: an etcd restored from a backup counts from an earlier number.
BELIEVED_S = 60.0


def newer(one: str, other: str) -> bool:
    """Whether resource version `one` is later than `other`.

    Kubernetes 1.35 made the order official (KEP-5504: decimal numbers, comparable within a resource). Anything that
    is not a number comes from another kind of API server, where only the latest reading can be right.
    """
    if one.isdigit() and other.isdigit():
        return int(one) > int(other)
    return True


class OwnWrites:
    """Versions that our own calls returned, until the watch has caught up. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._versions: dict[str, tuple[str, float]] = {}

    @property
    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def wrote(self, key: str, version: str) -> None:
        """An answer to a call of ours carried this version."""
        self._versions[key] = (version, self._clock() + BELIEVED_S)

    def outdated(self, key: str, version: str) -> bool:
        """True for a reading of the watch that is older than our own; once it caught up, the memory is dropped."""
        known = self._versions.get(key)
        if known is None:
            return False
        if self._clock() < known[1] and newer(known[0], version):
            return True
        del self._versions[key]
        return False
