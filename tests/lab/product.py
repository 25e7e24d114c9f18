"""Tenure beside a lab's cluster: installed as the chart installs it, run as a process of the lab."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from service import names
from tests.lab.lab import Lab
from tests.lab.layout import REPOSITORY
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program

NAMESPACE = "tenure-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:tenure-server"
CHART = REPOSITORY / "charts" / "tenure"
SCHEDULER = "tenure-scheduler"


@dataclass(frozen=True, slots=True)
class Replica:
    """One running `tenure serve` and where it listens (all on loopback)."""

    name: str
    webhook: int
    extender: int
    ops: int

    @property
    def url(self) -> str:
        """The ops listener."""
        return f"http://127.0.0.1:{self.ops}"


class Product:
    """Installs Tenure's objects into a lab and runs its server there."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def install(self) -> None:
        """Everything of the chart that is not a workload: CRDs, rights, policies."""
        self._lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        for crd in sorted((CHART / "files" / "crds").glob("*.yaml")):
            self._lab.kubectl("apply", "--server-side", "-f", str(crd))
        self._lab.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        self._lab.apply(*self.manifests("templates/rbac-server.yaml", "templates/guard.yaml"))

    def manifests(self, *templates: str, values: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Objects of the chart as Helm renders them."""
        shown = [f"--show-only={template}" for template in templates]
        given = [f"--set={key}={value}" for key, value in (values or {}).items()]
        text = self._lab.helm("template", "tenure", str(CHART), f"--namespace={NAMESPACE}", *shown, *given)
        return [found for found in yaml.safe_load_all(text) if found]

    def register_webhook(self, replica: Replica, values: Mapping[str, str] | None = None) -> None:
        """Let the API server call this replica for each new pod; the CA is filled in by the product."""
        (found,) = self.manifests("templates/webhook.yaml", values=values)
        url = f"https://127.0.0.1:{replica.webhook}/admission/pods"
        for webhook in found["webhooks"]:
            webhook["clientConfig"] = {"url": url}
        self._lab.apply(found)

    def start(self, name: str = "tenure-0", **settings: str) -> Replica:
        """Run one server until it is ready. Settings as `section__field="value"`."""
        replica = Replica(name, *free_ports(3))
        self._lab.components.run(self.program(replica, **settings))
        return replica

    def prepare(self, name: str = "tenure-0") -> Replica:
        """Ports for a server that is started later with `run`, for example after its webhook is registered."""
        return Replica(name, *free_ports(3))

    def run(self, replica: Replica, **settings: str) -> None:
        """Run a prepared server until it is ready."""
        self._lab.components.run(self.program(replica, **settings))

    def start_scheduler(self, replica: Replica, name: str = SCHEDULER) -> None:
        """A kube-scheduler with our profile that calls this replica's extender."""
        self._lab.start_scheduler(name, scheduler_config(replica))

    def program(self, replica: Replica, **settings: str) -> Program:
        """How a prepared server is run, for those who change something about that."""
        account = self._lab.kubeconfig_for(ACCOUNT)
        env = {
            "TENURE_KUBE__KUBECONFIG": str(account),
            "TENURE_KUBE__NAMESPACE": NAMESPACE,
            "TENURE_HTTP__WEBHOOK_HOST": "127.0.0.1",
            "TENURE_HTTP__WEBHOOK_PORT": str(replica.webhook),
            "TENURE_HTTP__EXTENDER_PORT": str(replica.extender),
            "TENURE_HTTP__OPS_HOST": "127.0.0.1",
            "TENURE_HTTP__OPS_PORT": str(replica.ops),
            "TENURE_CERTS__NAMES": '["127.0.0.1"]',
            "PATH": str(Path(sys.executable).parent),
            "PYTHONPATH": str(REPOSITORY),
        }
        env |= {f"TENURE_{key.upper()}": value for key, value in settings.items()}
        argv = [sys.executable, "-m", "service", "serve"]
        health = Health(port=replica.ops, path="/readyz", tls=False)
        return Program(name=replica.name, argv=argv, env=env, health=health)


def scheduler_config(
    replica: Replica, *, count: str = names.REMOTE_GPU, memory: str = names.REMOTE_GPU_MEMORY
) -> dict[str, Any]:
    """Profile and extender as the chart configures them, with the two resource names of the settings."""
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "profiles": [{"schedulerName": SCHEDULER}],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{replica.extender}/scheduler",
                "filterVerb": "filter",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "nodeCacheCapable": True,
                "weight": 1,
                "httpTimeout": "5s",
                "ignorable": False,
                "managedResources": [
                    {"name": count, "ignoredByScheduler": True},
                    {"name": memory, "ignoredByScheduler": True},
                ],
            }
        ],
    }
