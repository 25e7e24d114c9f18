"""What a pod asks of the remote pool: whole cards per container, with a least memory per card.

Containers run in phases. An init container ends before the next one starts, so its cards serve later
containers again; a sidecar (init container that restarts always) keeps its cards until the pod ends. The pod
needs as many cards as its largest phase, and each card must be large enough for whoever uses it in any phase
(Kubernetes, "Init Containers: resource sharing within containers", applied to whole cards).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import zip_longest
from typing import Protocol

import msgspec

from controllers.pool import quantity
from controllers.pool.quantity import Quantity

# More is a typing error, and a bound keeps a hostile request cheap. The largest known server has 16 cards.
MAX_CARDS = 1024
# The API server bounds a pod by bytes only: 50,000 containers fit. kubelet runs a few hundred at best.
MAX_CONTAINERS = 1000
# int32, the width that HAMi's register annotation gives to a card's memory.
MAX_MEMORY_MIB = 2**31 - 1
# Nearly every quantity here is a few plain digits; admission reads those, for every pod, without the pattern.
_PLAIN = 9


class ResourcesLike(Protocol):
    """The part of core/v1 ResourceRequirements that is read here."""

    @property
    def limits(self) -> Mapping[str, Quantity] | None:
        """Upper bounds by resource name."""

    @property
    def requests(self) -> Mapping[str, Quantity] | None:
        """Lower bounds by resource name."""


class ContainerLike(Protocol):
    """The part of core/v1 Container that is read here."""

    @property
    def name(self) -> str:
        """The name."""

    @property
    def restart_policy(self) -> str | None:
        """`Always` on a sidecar."""

    @property
    def resources(self) -> ResourcesLike | None:
        """What it asks for."""


class DemandError(ValueError):
    """The request cannot be meant; the text is one sentence for the user that says what to change."""


class Kind(Enum):
    """When a container runs."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Need(msgspec.Struct, frozen=True, gc=False):
    """One container's request: `count` whole cards of at least `memory_mib` MiB each."""

    container: str
    kind: Kind
    count: int = 0
    memory_mib: int = 0


@dataclass(frozen=True)
class Demand:
    """A pod's request. `needs` has every container, init containers first, so that positions can be kept."""

    needs: tuple[Need, ...]

    @property
    def cards(self) -> int:
        """How many cards its largest phase needs: the number of its slots, without making them."""
        sidecars = apps = most = 0
        for need in self.needs:
            if need.kind is Kind.APP:
                apps += need.count
            elif need.kind is Kind.SIDECAR:
                sidecars += need.count
            else:
                most = max(most, sidecars + need.count)
        return max(most, sidecars + apps)

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Least memory in MiB of each card that the pod needs, largest first.

        As many slots as cards. Slot k is the largest k-th requirement of any phase: a set of cards serves
        every phase if and only if, sorted by memory, each card reaches its slot.
        """
        phases = (sorted(phase, reverse=True) for phase in self._phases())
        return tuple(max(slot) for slot in zip_longest(*phases, fillvalue=0))

    def _phases(self) -> Iterator[list[int]]:
        sidecars: list[int] = []
        for need in self.needs:
            cards = [need.memory_mib] * need.count
            if need.kind is Kind.SIDECAR:
                sidecars = sidecars + cards
            elif need.kind is Kind.INIT:
                yield sidecars + cards
        apps = [need.memory_mib for need in self.needs if need.kind is Kind.APP for _ in range(need.count)]
        yield sidecars + apps


def of(
    containers: Sequence[ContainerLike],
    init_containers: Sequence[ContainerLike] | None,
    count_name: str,
    memory_name: str,
) -> Demand | None:
    """The demand of a pod, or None when no container asks for a card.

    `count_name` and `memory_name` are the two resource names; an empty count name (backend disabled) asks for
    nothing. Raises DemandError.
    """
    if not count_name:
        return None
    needs = [_need(c, _init_kind(c), count_name, memory_name) for c in init_containers or ()]
    needs += [_need(c, Kind.APP, count_name, memory_name) for c in containers]
    if not any(need.count for need in needs):
        return None
    if len(needs) > MAX_CONTAINERS:
        raise DemandError(f"the pod has {len(needs)} containers; at most {MAX_CONTAINERS} can share cards")
    demand = Demand(tuple(needs))
    if demand.cards > MAX_CARDS:
        raise DemandError(f"the pod asks for {demand.cards} cards; at most {MAX_CARDS} can be asked for")
    return demand


def _init_kind(container: ContainerLike) -> Kind:
    return Kind.SIDECAR if container.restart_policy == "Always" else Kind.INIT


def _need(container: ContainerLike, kind: Kind, count_name: str, memory_name: str) -> Need:
    count = _whole(container, count_name, MAX_CARDS)
    memory = _whole(container, memory_name, MAX_MEMORY_MIB)
    if memory and not count:
        raise DemandError(
            f'container "{container.name}" asks for {memory_name} without {count_name}; '
            f'add {count_name}: "1" to its limits'
        )
    return Need(container.name, kind, count, memory if count else 0)


def _whole(container: ContainerLike, resource: str, most: int) -> int:
    """The quantity of one resource as a whole number; 0 when it is not asked for."""
    text = _quantity(container, resource)
    if text is None:
        return 0
    if len(text) <= _PLAIN and text.isascii() and text.isdigit():
        return _bounded(int(text), container, resource, most)
    number = quantity.parse(text)
    if number is None or number != number.to_integral_value() or number < 0:
        raise DemandError(
            f'container "{container.name}": {resource} must be a whole number, not "{text[:40]}"; '
            'write for example "1"'
        )
    return _bounded(int(number), container, resource, most)


def _bounded(number: int, container: ContainerLike, resource: str, most: int) -> int:
    if number > most:
        raise DemandError(
            f'container "{container.name}": {resource} may be {most} at most, not {str(number)[:40]}'
        )
    return number


def _quantity(container: ContainerLike, resource: str) -> str | None:
    resources = container.resources
    for part in (resources.limits, resources.requests) if resources else ():
        if part and resource in part:
            return str(part[resource])
    return None
