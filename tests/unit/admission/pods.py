"""Pods and reviews as the API server sends them, small enough to read in a test."""

import base64
import copy
import json
from typing import Any

import jsonpatch

from service.settings import Settings
from webhook.admission import review
from webhook.admission.mounts import NamespaceLabels
from webhook.admission.mutate import Decision, Policy, decide
from webhook.admission.review import Answer

Json = dict[str, Any]
COUNT = "hami.io/remote-gpu"
MEMORY = "hami.io/remote-gpu-memory"
CARD = {COUNT: "1"}


def container(name: str = "main", limits: Json | None = None, **fields: Any) -> Json:
    resources = {"limits": limits, "requests": limits} if limits is not None else {}
    return {"name": name, "image": "example/image", "resources": resources, **fields}


def pod(*containers: Json, annotations: Any = None, labels: Any = None, **spec: Any) -> Json:
    meta: Json = {"name": "p", "creationTimestamp": None}
    meta |= {"annotations": annotations} if annotations is not None else {}
    meta |= {"labels": labels} if labels is not None else {}
    base: Json = {"containers": list(containers) or [container()], "schedulerName": "default-scheduler"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": base | spec, "status": {}}


def asking(*, limits: Json | None = None, **fields: Any) -> Json:
    """A pod with one container that asks for a card."""
    return pod(container(limits=limits or CARD), **fields)


def admission(obj: Any, **fields: Any) -> Json:
    request = {
        "uid": "0f4c8d9e-1111-2222-3333-444455556666",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "namespace": "tenant",
        "operation": "CREATE",
        "userInfo": {"username": "tenant"},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request | fields}


def body(obj: Any, **fields: Any) -> bytes:
    return json.dumps(admission(obj, **fields)).encode()


def decision(
    obj: Json, policy: Policy | None = None, labels: NamespaceLabels = lambda _: None, **fields: Any
) -> Decision:
    return decide(review.read(body(obj, **fields)), policy or Policy.of(Settings()), labels)


def operations(found: Decision) -> list[Json]:
    """The patch as the API server decodes it."""
    answer = json.loads(review.patched("u", found.patch).body)
    patch: list[Json] = json.loads(base64.b64decode(answer["response"]["patch"]))
    return patch


def mutated(obj: Json, policy: Policy | None = None, **fields: Any) -> Json:
    """The pod after our patch, applied by an independent implementation."""
    found = decision(obj, policy, **fields)
    assert found.refusal is None, found.refusal
    return patched(obj, operations(found))


def patched(obj: Json, patch: list[Any]) -> Json:
    result: Any = jsonpatch.JsonPatch(patch).apply(copy.deepcopy(obj))
    assert isinstance(result, dict)
    return result


def refusal(obj: Json, policy: Policy | None = None) -> str:
    found = decision(obj, policy)
    assert found.refusal is not None, "the pod was let in"
    assert found.patch == ()
    return found.refusal.sentence


def env(result: Json, name: str = "main") -> dict[str, Any]:
    """The environment of a container by name; fails on a name that is there twice."""
    spec = result["spec"]
    found = next(c for c in [*spec.get("initContainers", []), *spec["containers"]] if c["name"] == name)
    entries = found.get("env", [])
    assert len({entry["name"] for entry in entries}) == len(entries)
    return {e["name"]: e.get("value", e.get("valueFrom")) for e in entries}


def response(answer: Answer) -> Json:
    result: Json = json.loads(answer.body)["response"]
    return result
