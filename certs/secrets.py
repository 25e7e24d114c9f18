"""One Secret on which all replicas agree without a leader: the API server's compare-and-swap decides."""

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from service.kube.client import KubeClient
from service.kube.errors import Conflict, NotFound
from service.kube.resources import SECRETS

# Each lost round means that another replica won it, and then there is seldom anything left to write.
_ROUNDS: Final = 5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What follows from a Secret's data, and what must change in them first: None as a value removes its key."""

    outcome: T
    change: Mapping[str, bytes | None] | None = None


class AgreedSecret:
    """A Secret that any replica may create and repair. Keys and metadata that are not ours stay as they are."""

    def __init__(self, client: KubeClient, *, namespace: str, name: str, kind: str = "Opaque") -> None:
        self._client = client
        self._namespace = namespace
        self._name = name
        self._kind = kind

    async def agree(self, decide: Callable[[Mapping[str, bytes]], Decision[T]]) -> T:
        """Read, decide, write; from the start when somebody else wrote in between. Raises KubeError.

        `decide` sees an absent Secret as an empty one. The answer is the outcome of the decision that stands.
        """
        for remaining in reversed(range(_ROUNDS)):
            found = await self._read()
            old = {key: b64decode(value) for key, value in ((found or {}).get("data") or {}).items()}
            decision = decide(old)
            if decision.change is None:
                return decision.outcome
            try:
                await self._write(found, {**old, **decision.change})
            except (Conflict, NotFound):  # written, created or deleted since we read
                if not remaining:
                    raise
            else:
                return decision.outcome
        raise AssertionError("the last round returns or raises")

    async def _read(self) -> dict[str, Any] | None:
        try:
            body = await self._client.get(SECRETS.path(self._namespace, self._name))
        except NotFound:
            return None
        return msgspec.json.decode(body, type=dict[str, Any])

    async def _write(self, found: dict[str, Any] | None, values: Mapping[str, bytes | None]) -> None:
        data = {key: b64encode(value).decode() for key, value in values.items() if value is not None}
        if found is None:
            metadata = {"name": self._name, "labels": {"app.kubernetes.io/managed-by": "tenure"}}
            body = {
                "apiVersion": "v1",
                "kind": "Secret",
                "type": self._kind,
                "metadata": metadata,
                "data": data,
            }
            await self._client.create(SECRETS.path(self._namespace), body)
        else:
            await self._client.replace(SECRETS.path(self._namespace, self._name), {**found, "data": data})
