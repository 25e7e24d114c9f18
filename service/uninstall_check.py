"""Before `helm uninstall`: which pods still need Tenure.

A pod with remote cards would go on, but its cards would be in nobody's book. One that waits at our gate would wait for
ever, because nobody opens the gate. One with region volumes could not end, because kubelet needs the driver to take
them away.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from service import names
from service.kube.client import KubeClient
from service.kube.metrics import KubeMetrics
from service.kube.pages import everything
from service.kube.resources import PODS
from service.metrics import MetricSet
from service.objects import ObjectMeta, PodStatus, Projection, SchedulingGate
from service.settings import KubeSettings

HOLDS: Final = "holds remote cards"
WAITS: Final = f"waits at scheduling gate {names.GATE}"
VOLUMES: Final = f"has volumes of {names.CSI_DRIVER}, and cannot end without the driver"
# Lines that are shown; who has more of them has understood.
_SHOWN: Final = 50


class Csi(Projection, frozen=True):
    """core/v1 CSIVolumeSource."""

    driver: str = ""


class Volume(Projection, frozen=True):
    """core/v1 Volume, as far as it is an inline CSI volume."""

    csi: Csi | None = None


class Spec(Projection, frozen=True):
    """core/v1 PodSpec."""

    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    volumes: tuple[Volume, ...] | None = None


class Pod(Projection, frozen=True):
    """core/v1 Pod, as far as it may need Tenure."""

    metadata: ObjectMeta
    spec: Spec = Spec()
    status: PodStatus = PodStatus()


@dataclass(frozen=True, slots=True)
class Blocker:
    """A pod that needs Tenure, and what for."""

    pod: str
    reasons: tuple[str, ...]


def blocker(pod: Pod) -> Blocker | None:
    """What the pod needs Tenure for; None when it does not, or has ended: kubelet took its volumes away by then."""
    if pod.status.phase in {"Succeeded", "Failed"}:
        return None
    gates = pod.spec.scheduling_gates or ()
    volumes = pod.spec.volumes or ()
    found = {
        HOLDS: names.DEVICES_ALLOCATED in pod.metadata.annotations,
        WAITS: any(gate.name == names.GATE for gate in gates),
        VOLUMES: any(volume.csi and volume.csi.driver == names.CSI_DRIVER for volume in volumes),
    }
    reasons = tuple(reason for reason, true in found.items() if true)
    return Blocker(pod.metadata.key, reasons) if reasons else None


async def blockers(settings: KubeSettings) -> list[Blocker]:
    """All of them, by name. Raises KubeError, ConfigError."""
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    try:
        return sorted([found async for found in _blockers(client)], key=lambda one: one.pod)
    finally:
        await client.close()


async def _blockers(client: KubeClient) -> AsyncIterator[Blocker]:
    pods: Any = everything(client, PODS, Pod)
    async for pod in pods:
        if found := blocker(pod):
            yield found


def report(found: Sequence[Blocker], *, warn_only: bool) -> str:
    """Text for people."""
    if not found:
        return "No pod needs Tenure any more."
    lines = [f"{len(found)} pods still need Tenure:"]
    lines += [f"  {one.pod}: {'; '.join(one.reasons)}" for one in found[:_SHOWN]]
    lines += [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    advice = (
        "Nothing was deleted. Delete these pods and uninstall again; or let Tenure stay: `helm rollback` to the last"
        " revision of `helm history` makes the release whole again, and then uninstall.blockers=warn can be set."
    )
    return "\n".join([*lines, "Going all the same." if warn_only else advice])
