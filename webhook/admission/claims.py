"""Devices by name: an annotation becomes a claim from a template, or extended resources where there is no DRA.

Only a reference to the template is written: the claim itself is made, and removed, by Kubernetes. A pod that names a
claim of its own knows better and is left alone.
"""

from dataclasses import dataclass

from service import names
from service.settings import DevicesSettings
from webhook.admission.draft import ContainerDraft, PodDraft, Reason, RefusalError
from webhook.admission.patch import ListEditor, MapEditor
from webhook.admission.pod import ClaimUse, PodClaim

# The claim's name within its pod; by it a second call knows the first one's work.
_CLAIM = "tenure"


@dataclass(frozen=True, slots=True)
class ClaimPolicy:
    """What the annotation stands for."""

    default_template: str
    by_claim: bool
    resources: dict[str, int]
    """Extended resources that a device plugin serves, and how many of each."""

    @classmethod
    def of(cls, settings: DevicesSettings) -> "ClaimPolicy":
        """The policy of a settings section."""
        kinds = (settings.npu, settings.rdma) if settings.rdma.enabled else (settings.npu,)
        plugged = [kind for kind in kinds if kind.mode == "devicePlugin"]
        return cls(
            default_template=settings.claim_template_name,
            by_claim=len(plugged) < len(kinds),
            resources={kind.resource_name: kind.count for kind in plugged},
        )


def add(draft: PodDraft, policy: ClaimPolicy) -> None:
    """Give the devices that the annotation asks for. Raises RefusalError."""
    wanted = (draft.pod.metadata.annotations or {}).get(names.CLAIM_TEMPLATE)
    if wanted is None:
        return
    if any(claim.name != _CLAIM for claim in draft.claims.items):
        draft.warn(
            f"annotation {names.CLAIM_TEMPLATE} has no effect: the pod names resource claims of its own"
        )
        return
    targets = _targets(draft)
    if targets and policy.by_claim:
        _claim(draft, targets, wanted.strip() or policy.default_template)
    for container in targets if policy.resources else ():
        _plug(draft, container, policy.resources)


def _targets(draft: PodDraft) -> list[ContainerDraft]:
    """The named containers, else the first app container."""
    listed = (draft.pod.metadata.annotations or {}).get(names.CLAIM_CONTAINERS, "")
    chosen = {name.strip() for name in listed.split(",")} - {""}
    if not chosen:
        return draft.apps[:1]
    unknown = chosen - {container.name for container in draft.containers}
    if unknown:
        draft.warn(f"annotation {names.CLAIM_CONTAINERS} names no container {min(unknown)[:63]}")
    return [container for container in draft.containers if container.name in chosen]


def _claim(draft: PodDraft, targets: list[ContainerDraft], template: str) -> None:
    if not template:
        raise RefusalError(
            Reason.CLAIM,
            f"annotation {names.CLAIM_TEMPLATE} is empty and no default is set: write the name of a "
            "ResourceClaimTemplate of the namespace into it, or have devices.claim_template_name set",
        )
    if not draft.claims.items:
        draft.claims.append(PodClaim(_CLAIM, resource_claim_template_name=template))
    for container in targets:
        _use(container)


def _use(container: ContainerDraft) -> None:
    resources = container.view.resources
    uses = resources.claims if resources else None
    if any(use.name == _CLAIM for use in uses or ()):
        return
    if uses is None:
        container.resources.put("claims", [ClaimUse(_CLAIM)])
    else:
        ListEditor(container.patch, f"{container.path}/resources/claims", uses).append(ClaimUse(_CLAIM))


def _plug(draft: PodDraft, container: ContainerDraft, resources: dict[str, int]) -> None:
    """Ask for extended resources beside what the container asks for itself."""
    found = container.view.resources
    limits = found.limits if found else None
    missing = {name: str(count) for name, count in resources.items() if name not in (limits or {})}
    if not missing:
        return
    if limits is None:
        container.resources.put("limits", missing)
    else:
        editor = MapEditor(container.patch, f"{container.path}/resources/limits", limits)
        for name, count in missing.items():
            editor.put(name, count)
    draft.warn(f"container {container.name[:63]}: devices come from a device plugin, without NUMA alignment")
