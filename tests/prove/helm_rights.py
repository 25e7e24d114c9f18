"""What the release's accounts may do, by the chart, beside what they did, by the API server's audit log."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.lab.product import NAMESPACE

Json = dict[str, Any]

# What a run of some minutes on a healthy cluster does not come to, and why the right is there all the same.
RARE: Final = {
    "tenure-server": {
        "get pods": "a Binding's outcome is not known",
        "get remoteservers.tenure.dev": "the cache does not know a promise yet",
        "delete remoteservers.tenure.dev": "a server's node is gone and nobody holds its cards",
        "create secrets": "the CA's Secret was deleted",
        "create leases.coordination.k8s.io": "the lease was deleted",
        "update leases.coordination.k8s.io": "the kube-scheduler's",
        "get resourceclaimtemplates.resource.k8s.io": "a pod names a template",
        "list daemonsets.apps": "a class of a DRA driver is there",
        "list acceleratorprofiles.airm.ai-computing.io": "slices of a DRA driver are there",
        "list devicetaintrules.resource.k8s.io": "the API server serves them",
        "create devicetaintrules.resource.k8s.io": "a host process holds a card of a DRA driver",
        "delete devicetaintrules.resource.k8s.io": "and lets go of it",
        "create events.events.k8s.io": "something is wrong with a node or a pod",
        "patch events.events.k8s.io": "and goes on",
    },
    "tenure-node": {
        # The nodes that serve cards are simulated here, and the real one has none.
        "patch remoteservers.tenure.dev": "the node serves its cards",
        "get acceleratorprofiles.airm.ai-computing.io": "another daemon may have made it",
        "create acceleratorprofiles.airm.ai-computing.io": "the node has a card: an apply makes its profile",
        "patch acceleratorprofiles.airm.ai-computing.io": "the same",
        "delete acceleratorprofiles.airm.ai-computing.io": "the card is gone",
        "create events.events.k8s.io": "a host process comes to a card",
        "patch events.events.k8s.io": "and stays",
    },
}


class Use(NamedTuple):
    """One call: who, what, and the answer's code."""

    account: str
    call: str
    code: int
    agent: str


def uses(audit: Path) -> Iterator[Use]:
    """Calls of the release's accounts."""
    prefix = f"system:serviceaccount:{NAMESPACE}:tenure-"
    for line in audit.read_text().splitlines():
        event = json.loads(line)
        target = event.get("objectRef")
        user = event["user"].get("username", "")  # None while the API server is not ready to ask who calls.
        if not user.startswith(prefix) or not target:
            continue
        yield Use(
            account=user.rpartition(":")[2],
            call=_call(event["verb"], target),
            code=event.get("responseStatus", {}).get("code", 0),
            agent=event.get("userAgent", ""),
        )


def _call(verb: str, target: Json) -> str:
    resource = target["resource"] + (f"/{target['subresource']}" if target.get("subresource") else "")
    return f"{verb} {resource}" + (f".{target['apiGroup']}" if target.get("apiGroup") else "")


def granted(objects: Iterable[Json], account: str) -> set[str]:
    """What the chart's own roles of an account allow."""
    return {
        f"{verb} {resource}" + (f".{group}" if group else "")
        for one in objects
        if one["kind"] in {"ClusterRole", "Role"} and one["metadata"]["name"] == account
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def refused(found: Iterable[Use]) -> set[str]:
    """Calls that an account had no right to. The test's account is refused on purpose."""
    return {f"{use.account}: {use.call}" for use in found if use.code == 403 and use.account != "tenure-test"}


def unused(found: Iterable[Use], manifest: str) -> set[str]:
    """Rights of server and agents that were not used, but for those that are rarely needed."""
    objects = [one for one in yaml.safe_load_all(manifest) if one]
    # The kube-scheduler beside the server has Kubernetes' own roles.
    asked = {(use.account, use.call) for use in found if not use.agent.startswith("kube-scheduler")}
    return {
        f"{account}: {call}"
        for account, rare in RARE.items()
        for call in granted(objects, account) - rare.keys()
        if (account, call) not in asked
    }
