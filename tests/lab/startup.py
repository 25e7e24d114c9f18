"""In which order the programs of a lab start, and what each step waits for."""

import shlex
from dataclasses import dataclass

from tests.lab.api import Api
from tests.lab.components import Components, Progress
from tests.lab.controlplane import API_SERVICE_IP, LOOPBACK, SCHEDULER, SCHEDULER_USER, ControlPlane
from tests.lab.node import NAME, Node, is_ready

_SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
_WAIT_SECONDS = 60.0


def create_credentials(plane: ControlPlane) -> None:
    """The authority and the servers' certificate, for all names by which the API server is called."""
    plane.authority.create(names=sorted({LOOPBACK, plane.settings.host, API_SERVICE_IP, *_SERVER_NAMES}))


def write_kubectl(plane: ControlPlane) -> None:
    """All of Kubernetes is one program: a person types kubectl all the same."""
    folder = plane.layout.commands
    folder.mkdir()
    script = folder / "kubectl"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(str(plane.binary))} kubectl "$@"\n')
    script.chmod(0o755)


@dataclass(frozen=True, slots=True)
class Startup:
    """Starts one lab's programs. `api` is the API server that the first step brings up."""

    plane: ControlPlane
    components: Components
    api: Api
    progress: Progress

    def control_plane(self) -> None:
        """Return when pods can be made."""
        plane = self.plane
        self.components.run(plane.etcd())
        self.components.run(plane.api_server())
        port = plane.settings.ports[SCHEDULER]
        self.components.run(
            plane.controller_manager(),
            plane.scheduler(SCHEDULER, port=port, config={}, user=SCHEDULER_USER),
        )
        with self.progress("default service account"):  # No pod can be made before.
            self.api.wait_for("/api/v1/namespaces/default/serviceaccounts/default", seconds=_WAIT_SECONDS)

    def node(self) -> None:
        """Return when the scheduler may use the real node."""
        node = Node(self.plane)
        self.components.run(node.containerd())
        with self.progress("images"):
            node.wait_for_containerd()
            node.import_own_images()
        self.components.run(node.kubelet(), node.kube_proxy())
        with self.progress("node"):
            self.api.wait_for(f"/api/v1/nodes/{NAME}", accept=is_ready, seconds=_WAIT_SECONDS)
