"""The projections of a pod that admission reads: what it may have to change, and what it needs to judge.

Frozen, decoded with the review in one pass. A list that the API server writes as `null` (a pod without
containers) decodes to None, like an absent one.
"""

from typing import Any

import msgspec

from service.objects import EnvVarSource, Projection, Quantity, SchedulingGate

Volume = dict[str, Any]
_VOLUMES = msgspec.json.Decoder(tuple[Volume, ...] | None)
_NO_VOLUMES = msgspec.Raw(b"null")
# What decoding hostile bytes can raise: bad JSON or types, bad UTF-8, nesting without end.
DECODE_FAILURES = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class BadCallError(ValueError):
    """The call cannot be understood; the text is one sentence about the review, not about the user's pod."""


class EnvVar(Projection, frozen=True):
    """core/v1 EnvVar. Other sources than the downward API decode to an empty `value_from`."""

    name: str = ""
    value: str | None = None
    value_from: EnvVarSource | None = None


class VolumeMount(Projection, frozen=True):
    """core/v1 VolumeMount."""

    name: str = ""
    mount_path: str = ""
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class VolumeDevice(Projection, frozen=True):
    """core/v1 VolumeDevice."""

    device_path: str = ""


class ClaimUse(Projection, frozen=True):
    """core/v1 ResourceClaim: a container's use of a claim of its pod."""

    name: str = ""


class Resources(Projection, frozen=True):
    """core/v1 ResourceRequirements."""

    limits: dict[str, Quantity] | None = None
    requests: dict[str, Quantity] | None = None
    claims: tuple[ClaimUse, ...] | None = None


class Container(Projection, frozen=True):
    """core/v1 Container; `restart_policy` Always marks a sidecar."""

    name: str = ""
    restart_policy: str | None = None
    resources: Resources | None = None
    env: tuple[EnvVar, ...] | None = None
    env_from: tuple[dict[str, Any], ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    volume_devices: tuple[VolumeDevice, ...] | None = None


class PodOs(Projection, frozen=True):
    """core/v1 PodOS."""

    name: str = ""


class PodClaim(Projection, frozen=True):
    """core/v1 PodResourceClaim."""

    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class Spec(Projection, frozen=True):
    """core/v1 PodSpec. `volumes` stays raw: most pods never need it decoded."""

    containers: tuple[Container, ...] | None = None
    init_containers: tuple[Container, ...] | None = None
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] | None = None
    node_selector: dict[str, str] | None = None
    os: PodOs | None = None
    volumes: msgspec.Raw = _NO_VOLUMES
    resource_claims: tuple[PodClaim, ...] | None = None


class Meta(Projection, frozen=True):
    """meta/v1 ObjectMeta; at CREATE there is no uid, and with generateName no name."""

    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Pod(Projection, frozen=True):
    """core/v1 Pod."""

    metadata: Meta = Meta()
    spec: Spec = Spec()


def volumes(spec: Spec) -> tuple[Volume, ...] | None:
    """The volumes as plain JSON, None when there is no list. Raises BadCallError."""
    try:
        found = _VOLUMES.decode(spec.volumes)
    except DECODE_FAILURES as error:
        raise BadCallError(f"request.object.spec.volumes cannot be read: {error}") from None
    if not all(isinstance(volume.get("name", ""), str) for volume in found or ()):
        raise BadCallError("a name in request.object.spec.volumes is no text")
    return found
