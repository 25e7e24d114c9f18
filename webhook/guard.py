"""Whether the guard policies stand, as the API server has them: without them a tenant can write itself a card.

Only looked at, never repaired: who may write decision keys is decided by whoever installs Tenure, not by Tenure.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import nan
from typing import Any, Final, TypeVar

import msgspec
import structlog

from service.kube.client import KubeClient
from service.kube.errors import KubeError, NotFound
from service.kube.resources import ADMISSION_POLICIES, ADMISSION_POLICY_BINDINGS, Resource
from service.metrics import MetricSet
from service.objects import Projection

# Seconds between two looks: two small reads per policy.
LOOK_EVERY_S: Final = 60.0

log = structlog.get_logger(__name__)


class Policy(StrEnum):
    """The policies of charts/tenure/files/guard.yaml; the binding of each has its name."""

    DECISION_KEYS = "tenure-decision-keys"
    GATE = "tenure-gate"


class _PolicySpec(Projection, frozen=True):
    failure_policy: str = "Fail"


class _Policy(Projection, frozen=True):
    spec: _PolicySpec = _PolicySpec()


class _BindingSpec(Projection, frozen=True):
    policy_name: str = ""
    validation_actions: tuple[str, ...] = ()
    match_resources: dict[str, Any] = msgspec.field(default_factory=dict)

    @property
    def narrow(self) -> bool:
        """True when it leaves some objects out; the API server writes empty selectors into it, which do not."""
        return any(value for key, value in self.match_resources.items() if key != "matchPolicy")


class _Binding(Projection, frozen=True):
    spec: _BindingSpec = _BindingSpec()


_P = TypeVar("_P", _Policy, _Binding)


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of one policy: in force, or why it is not; None: nobody could look yet."""

    in_force: bool | None = None
    why: str = "not looked at yet"


class GuardWatch:
    """Looks at the policies again and again."""

    def __init__(self, client: KubeClient, metrics: MetricSet) -> None:
        self._client = client
        self._gauge = metrics.gauge(
            "tenure_guard_policy_in_force",
            "1 while the guard policy and its binding deny, 0 when they do not; NaN when nobody could look.",
            {"policy": Policy},
        )
        self._standings = dict.fromkeys(Policy, Standing())
        for policy in Policy:
            self._gauge.labels(policy).set(nan)

    @property
    def standings(self) -> Mapping[str, Standing]:
        """By policy, for the status page."""
        return {policy.value: standing for policy, standing in self._standings.items()}

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            for policy in Policy:
                self._told(policy, await self._look(policy))
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self, policy: Policy) -> Standing:
        try:
            why = await self._weakness(policy)
        except (KubeError, msgspec.MsgspecError) as error:
            return Standing(None, f"could not be read: {error}")
        return Standing(why is None, why or "")

    async def _weakness(self, policy: Policy) -> str | None:
        """Why it does not deny everywhere; None when it does. Raises KubeError, MsgspecError."""
        found = await self._read(ADMISSION_POLICIES, policy, _Policy)
        if found is None:
            return "the policy is missing"
        if found.spec.failure_policy != "Fail":
            return "its failurePolicy is not Fail"
        binding = await self._read(ADMISSION_POLICY_BINDINGS, policy, _Binding)
        if binding is None or binding.spec.policy_name != policy:
            return "its binding is missing"
        if "Deny" not in binding.spec.validation_actions:
            return "its binding does not deny"
        if binding.spec.narrow:
            return "its binding leaves some objects out (matchResources)"
        return None

    async def _read(self, resource: Resource, policy: Policy, shape: type[_P]) -> _P | None:
        try:
            return msgspec.json.decode(await self._client.get(resource.path(name=policy)), type=shape)
        except NotFound:
            return None

    def _told(self, policy: Policy, now: Standing) -> None:
        before = self._standings[policy]
        self._standings[policy] = now
        self._gauge.labels(policy).set(nan if now.in_force is None else now.in_force)
        if now != before:
            say = log.info if now.in_force else log.warning
            say("guard policy", policy=policy.value, in_force=now.in_force, reason=now.why)
