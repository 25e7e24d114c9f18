"""What makes a pod a client of the remote pool: gate, scheduler, and the environment that lupine reads."""

from collections.abc import Container

from controllers.pool.demand import Demand
from service import names
from service.objects import EnvVarSource, FieldRef, SchedulingGate
from webhook.admission.draft import ContainerDraft, PodDraft, Reason, RefusalError
from webhook.admission.pod import EnvVar

# What needs no setting: ours, and the default one in both spellings, which becomes ours.
SCHEDULERS = frozenset({names.SCHEDULER_NAME, names.DEFAULT_SCHEDULER, ""})
# A device plugin's resource of this domain puts local NVIDIA cards into the container.
_LOCAL_DOMAIN = "nvidia.com/"


def _from_annotation(name: str, key: str) -> EnvVar:
    return EnvVar(name, value_from=EnvVarSource(FieldRef(f"metadata.annotations['{key}']")))


_ENDPOINT = _from_annotation(names.LUPINE_SERVER_ENV, names.LUPINE_ENDPOINT)
_NO_LOCAL_CUDA = EnvVar(names.LUPINE_DISABLE_LOCAL_ENV, "1")
_NO_LOCAL_CARDS = EnvVar(names.NVIDIA_VISIBLE_DEVICES_ENV, "void")
_GATE = SchedulingGate(names.GATE)


def refuse_impossible(draft: PodDraft, schedulers: Container[str]) -> None:
    """Refuse what can never get a remote card; `schedulers` may be named. Raises RefusalError."""
    spec = draft.pod.spec
    if spec.node_name:
        raise RefusalError(
            Reason.NODE_NAME,
            f'a pod that asks for remote GPUs cannot set spec.nodeName ("{spec.node_name[:63]}"): remove it, '
            "and use a nodeSelector on kubernetes.io/hostname to choose the node",
        )
    if spec.os is not None and spec.os.name == "windows":
        raise RefusalError(
            Reason.WINDOWS,
            "remote GPUs need Linux containers: remove the GPU request, or set spec.os.name to linux",
        )
    if spec.scheduler_name not in schedulers:
        raise RefusalError(
            Reason.SCHEDULER,
            f'scheduler "{spec.scheduler_name[:63]}" cannot give remote GPUs: remove spec.schedulerName, set it to '
            f'"{names.SCHEDULER_NAME}", or have the administrator list it in webhook.scheduler_names',
        )


def hold(draft: PodDraft) -> None:
    """Put our gate beside those of others, and the pod on our scheduler."""
    if _GATE not in draft.gates.items:
        draft.gates.append(_GATE)
    if draft.pod.spec.scheduler_name in {"", names.DEFAULT_SCHEDULER}:
        draft.scalars.put("schedulerName", names.SCHEDULER_NAME)


def release(draft: PodDraft) -> None:
    """Take our gate from a pod that asks for nothing (a copied manifest): nobody would ever open it."""
    for place, gate in enumerate(draft.pod.spec.scheduling_gates or ()):
        if gate.name == names.GATE:
            draft.gates.remove(place)
            draft.warn(f"scheduling gate {names.GATE} was removed: no container asks for a remote GPU")
            return  # The API server refuses a gate that is there twice.


def connect(draft: PodDraft, demand: Demand, *, visible_devices: bool, hide_local_cards: bool) -> None:
    """Give each container that asked for cards the address of its server.

    `visible_devices` also names the granted cards, for lupine versions that honour it (lupine 760);
    `hide_local_cards` keeps the container runtime from adding the node's own cards unasked.
    """
    for container, need in zip(draft.containers, demand.needs, strict=True):
        if not need.count:
            continue
        if visible_devices:
            key = f"{names.ALLOCATION_PREFIX}{container.name}"
            container.set_env(_from_annotation(names.CUDA_VISIBLE_DEVICES_ENV, key))
        if not _asks_local(container):
            _remote_only(draft, container, hide_local_cards=hide_local_cards)
        container.set_env(_ENDPOINT)


def _asks_local(container: ContainerDraft) -> bool:
    return bool([name for name in container.limits if name.startswith(_LOCAL_DOMAIN)])


def _remote_only(draft: PodDraft, container: ContainerDraft, *, hide_local_cards: bool) -> None:
    """Lupine counts local cards first, so a local card that slips in would be ordinal 0."""
    container.default_env(_NO_LOCAL_CUDA)
    sets_it = container.sets_env(names.NVIDIA_VISIBLE_DEVICES_ENV)
    if hide_local_cards:
        replaced = container.set_env(_NO_LOCAL_CARDS)
        if replaced or (container.view.env_from and not sets_it):
            draft.warn(
                f"container {container.name[:63]}: NVIDIA_VISIBLE_DEVICES is set to void, its cards are remote"
            )
    elif sets_it:
        draft.warn(
            f"container {container.name[:63]}: NVIDIA_VISIBLE_DEVICES may add local cards to the remote ones"
        )
