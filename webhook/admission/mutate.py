"""The pipeline: a request goes in, a decision comes out. Pure and without a wait; each step is one module.

No step writes a decision key, and no step depends on what another one wrote, so the pipeline applied to its own
output changes nothing.
"""

from dataclasses import dataclass
from functools import partial

import msgspec

from controllers.pool import demand
from service.settings import Settings
from webhook.admission import claims, lupine, mounts, reserved
from webhook.admission.claims import ClaimPolicy
from webhook.admission.draft import PodDraft, Reason, Refusal, RefusalError
from webhook.admission.mounts import NamespaceLabels, RegionPolicy
from webhook.admission.patch import Operation
from webhook.admission.review import Request


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that admission reads, flat."""

    count_name: str
    memory_name: str
    schedulers: frozenset[str]
    """Schedulers that a requesting pod may name, the default one included: it is replaced by ours."""
    visible_devices: bool
    hide_local_cards: bool
    regions: RegionPolicy
    claims: ClaimPolicy

    @classmethod
    def of(cls, settings: Settings) -> "Policy":
        """The policy of a settings tree."""
        return cls(
            count_name=settings.pool.resource_count_name,
            memory_name=settings.pool.resource_memory_name,
            schedulers=frozenset({*lupine.SCHEDULERS, *settings.webhook.scheduler_names}),
            visible_devices=settings.webhook.inject_visible_devices,
            hide_local_cards=settings.webhook.hide_local_cards,
            regions=RegionPolicy.of(settings.regions),
            claims=ClaimPolicy.of(settings.devices),
        )


class Decision(msgspec.Struct, frozen=True, gc=False):
    """Let in, with `patch` (empty: as it is), or refused with a sentence."""

    patch: tuple[Operation, ...] = ()
    warnings: tuple[str, ...] = ()
    stripped_keys: int = 0
    refusal: Refusal | None = None


UNTOUCHED = Decision()


def decide(request: Request, policy: Policy, labels: NamespaceLabels = lambda _: None) -> Decision:
    """What becomes of this pod. `labels` looks into the cache. Raises BadCallError where it cannot be read."""
    if not request.creates_pod or request.object is None:
        return UNTOUCHED
    count = len(request.object.spec.containers or ()) + len(request.object.spec.init_containers or ())
    if count > demand.MAX_CONTAINERS:  # The loop is everybody's: what it looks at has a bound.
        sentence = f"the pod has {count} containers; split it into pods of at most {demand.MAX_CONTAINERS}"
        return Decision(refusal=Refusal(Reason.SIZE, sentence))
    draft = PodDraft(request.object)
    try:
        reserved.strip(draft)
        _connect(draft, policy)
        mounts.add(draft, policy.regions, partial(labels, request.namespace))
        claims.add(draft, policy.claims)
    except RefusalError as error:
        return Decision(warnings=tuple(draft.warnings), refusal=error.refusal)
    return Decision(tuple(draft.patch), tuple(draft.warnings), draft.stripped_keys)


def _connect(draft: PodDraft, policy: Policy) -> None:
    asked = _demand(draft, policy)
    if asked is None:
        lupine.release(draft)
    else:
        lupine.refuse_impossible(draft, policy.schedulers)
        lupine.hold(draft)
        lupine.connect(
            draft, asked, visible_devices=policy.visible_devices, hide_local_cards=policy.hide_local_cards
        )


def _demand(draft: PodDraft, policy: Policy) -> demand.Demand | None:
    spec = draft.pod.spec
    try:
        return demand.of(spec.containers or (), spec.init_containers, policy.count_name, policy.memory_name)
    except demand.DemandError as error:
        raise RefusalError(Reason.DEMAND, str(error)) from None
