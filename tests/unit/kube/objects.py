"""Objects for tests of the store and the reflector."""

from service.objects import ObjectMeta, Pod, PodSpec


def pod(name: str, version: str = "1", *, uid: str | None = None, node: str = "") -> Pod:
    meta = ObjectMeta(name=name, namespace="a", uid=uid or f"uid-{name}", resource_version=version)
    return Pod(metadata=meta, spec=PodSpec(node_name=node))
