"""A real Kubernetes cluster that a test or a person starts, uses, hurts and throws away."""

import shutil
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self

import msgspec
import yaml

from tests.lab import images, machine
from tests.lab.api import Api, Call, client_context
from tests.lab.build import binaries
from tests.lab.command import COMMAND_SECONDS, run_command
from tests.lab.components import Components, Progress
from tests.lab.controlplane import (
    API_SERVER,
    CONTROLLER_MANAGER,
    ETCD,
    LOOPBACK,
    SCHEDULER,
    SCHEDULER_USER,
    ControlPlane,
    environment,
)
from tests.lab.credentials import Authority
from tests.lab.errors import LabError
from tests.lab.layout import DEFAULT_STATE, Layout, Settings
from tests.lab.node import CDI_FOLDER, KUBELET_FOLDER, Node
from tests.lab.node import NAME as NODE_NAME
from tests.lab.node import PORTS as NODE_PORTS
from tests.lab.ports import free_ports
from tests.lab.process import Processes
from tests.lab.simulated import NODES, SELECTED_NODES, SIMULATOR, SimulatedNode, is_schedulable
from tests.lab.startup import Startup, create_credentials, write_kubectl

_ADMIN = "admin"
_ADMIN_GROUPS = ("system:masters",)
_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"
_SIMULATED_NODES_SECONDS = 30.0
_SECONDS_PER_SIMULATED_NODE = 0.3  # On a machine that does ten other things; else a tenth of it.


class Lab:
    """One cluster, kept in one folder. Any process may use it by that folder; its programs outlive it.

    Every call is synchronous: from a coroutine whose own loop the cluster must reach meanwhile (a webhook
    in the test's process), call it with `asyncio.to_thread`. Failures are LabErrors: sentences.
    """

    def __init__(self, state: Path | str = DEFAULT_STATE, *, progress: Progress = nullcontext) -> None:
        self._layout = Layout(Path(state).absolute())
        self._authority = Authority(self._layout.pki)
        self._progress = progress
        processes = Processes(records=self._layout.records, logs=self._layout.logs)
        self.components = Components(processes, context=self._admin_context, progress=progress)

    # Life

    def up(
        self,
        *,
        node: bool = False,
        feature_gates: Mapping[str, bool] | None = None,
        api_server_flags: Sequence[str] = (),
    ) -> Self:
        """Start the cluster and return when it works; when it fails, nothing of it is left running.

        With `node`, a real node too, if this machine can: `node_missing` says why not.
        """
        folder = binaries(["control-plane", "node"] if node else ["control-plane"])
        missing = machine.missing() or machine.taken() if node else "the lab was started without it"
        settings = Settings(
            host=LOOPBACK if missing else machine.BRIDGE_IP,
            binaries=str(folder),
            ports=_choose_ports(),
            node_missing=missing,
            feature_gates=dict(feature_gates or {}),
            api_server_flags=list(api_server_flags),
        )
        self._claim(settings)
        try:
            self._start(with_node=missing is None)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Stop and remove everything of this lab but its logs. Safe to repeat, and after any crash."""
        self.components.kill_all()
        machine.release(self.state)
        for folder in self._layout.disposable:
            shutil.rmtree(folder, ignore_errors=True)
        self._layout.settings.unlink(missing_ok=True)

    # Where things are

    @property
    def state(self) -> Path:
        return self._layout.state

    @property
    def logs(self) -> Path:
        """A folder with NAME.log of every component."""
        return self._layout.logs

    @property
    def commands(self) -> Path:
        """A folder for a person's PATH, with `kubectl`."""
        return self._layout.commands

    @property
    def audit_log(self) -> Path:
        """One JSON event a line: who called what and how it was answered (level Metadata)."""
        return self._layout.audit_log

    @property
    def server(self) -> str:
        """The API server's URL."""
        return self._plane.server

    @property
    def api(self) -> Api:
        """The API server, as administrator."""
        return Api(self.server, self._admin_context())

    @property
    def node_missing(self) -> str | None:
        """Why there is no real node; None when there is one."""
        return self.settings.node_missing

    @property
    def node_name(self) -> str:
        """The real node's."""
        return NODE_NAME

    @property
    def node_ip(self) -> str:
        """The real node's address: that of the pods' bridge on this machine."""
        return machine.BRIDGE_IP

    @property
    def kubelet_folder(self) -> Path:
        """Where kubelet of the real node looks for plugins; `/var/lib/kubelet` on other nodes."""
        return KUBELET_FOLDER

    @property
    def cdi_folder(self) -> Path:
        """Where containerd looks for CDI specifications."""
        return CDI_FOLDER

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfig_for(_ADMIN, groups=_ADMIN_GROUPS)

    def kubeconfig_for(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file for a user with exactly these groups.

        `system:serviceaccount:NAMESPACE:NAME` gives a real token of that account, good for an hour.
        """
        if not user.startswith(_SERVICE_ACCOUNT_PREFIX):
            return self._plane.write_kubeconfig(user, groups=groups)
        namespace, name = user.removeprefix(_SERVICE_ACCOUNT_PREFIX).split(":")
        token = self.kubectl("create", "token", name, "--namespace", namespace, "--duration=1h")
        return self._plane.write_credential(f"{namespace}.{name}", user, token.strip())

    def identity(self, user: str, *, groups: Sequence[str] = ()) -> dict[str, str]:
        """Files of a TLS client of the API server, as Prometheus calls them."""
        pair = self._authority.client(user, groups=groups)
        return {
            "ca_file": str(self._authority.certificate),
            "cert_file": str(pair.certificate),
            "key_file": str(pair.key),
        }

    # Use

    def kubectl(self, *args: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What kubectl prints, run as administrator or with another kubeconfig."""
        return self._command([str(self._plane.binary), "kubectl", *args], stdin, kubeconfig)

    def helm(self, *args: str, kubeconfig: Path | None = None, seconds: float = COMMAND_SECONDS) -> str:
        """What Helm prints, run as administrator or with another kubeconfig."""
        return self._command([str(binaries(["helm"]) / "helm"), *args], None, kubeconfig, seconds=seconds)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """Create or change objects."""
        self.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def wait_for(self, path: str, *, accept: Callable[[Any], bool] = bool, seconds: float = 60) -> Any:
        """The object at an API path, as soon as it exists and `accept` says yes."""
        return self.api.wait_for(path, accept=accept, seconds=seconds)

    def import_rootfs(
        self,
        reference: str,
        rootfs: Path,
        *,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Make a root file system (an uncompressed tar) an image of the real node."""
        archive = self.state / "image.tar"
        images.archive(archive, reference, rootfs.read_bytes(), command=command, environment=environment)
        self._node.import_image(archive)
        archive.unlink()

    def import_image(self, archive: Path) -> None:
        """Make the image of an OCI archive known to the real node."""
        self._node.import_image(archive)

    def etcd_compact(self) -> int:
        """Drop all history before now; the revision it ends at.

        The API server goes on serving what its watch cache holds: after its restart, resource versions from
        before are gone (410).
        """
        pair = self._authority.client("etcd-client")
        etcd = Api(self._plane.etcd_url, client_context(self._authority.certificate, pair))
        status = etcd.ok(Call("POST", "/v3/maintenance/status", {}))
        revision = status["header"]["revision"]
        etcd.ok(Call("POST", "/v3/kv/compaction", {"revision": revision, "physical": True}))
        return int(revision)

    def restart_controllers(self) -> None:
        """Restart what client-go lets wait for up to a minute after an API server was away."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            self.components.restart(name)

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"

    def start_scheduler(
        self, name: str, config: Mapping[str, Any] | str, *, user: str = SCHEDULER_USER
    ) -> None:
        """Start one more kube-scheduler from a KubeSchedulerConfiguration (YAML text or its object).

        Connection and leader election are filled in where the configuration is silent. From then on it is
        one of the components, by its name.
        """
        parsed = yaml.safe_load(config) if isinstance(config, str) else config
        (port,) = free_ports(1)
        self.components.run(self._plane.scheduler(name, port=port, config=parsed, user=user))

    def simulate_nodes(self, nodes: Iterable[SimulatedNode]) -> None:
        """Add simulated nodes and return when the scheduler may use them. Pods bound to them "run" at once."""
        made = list(nodes)
        self._ensure_simulator()
        with self._progress(f"{len(made)} simulated nodes"):
            self.api.all_ok(Call("POST", NODES, node.manifest()) for node in made)
            names = {node.name for node in made}

            def are_schedulable(found: Any) -> bool:
                usable = {node["metadata"]["name"] for node in found["items"] if is_schedulable(node)}
                return names <= usable

            seconds = _SIMULATED_NODES_SECONDS + len(made) * _SECONDS_PER_SIMULATED_NODE
            self.wait_for(SELECTED_NODES, accept=are_schedulable, seconds=seconds)

    def remove_nodes(self, names: Iterable[str]) -> None:
        """Delete simulated nodes; their pods are deleted by the cluster's own garbage collection."""
        self.api.all_ok(Call("DELETE", f"{NODES}/{name}") for name in names)

    # Inside

    @property
    def settings(self) -> Settings:
        settings = self._layout.read_settings()
        if settings is None:
            raise LabError(f"no lab runs in {self.state}: start it with `python -m tests.lab up`")
        return settings

    @property
    def _plane(self) -> ControlPlane:
        return ControlPlane(self._layout, self.settings, self._authority)

    @property
    def _node(self) -> Node:
        plane = self._plane
        if plane.settings.node_missing is not None:
            raise LabError(f"this lab has no real node: {plane.settings.node_missing}")
        return Node(plane)

    def _command(
        self,
        argv: Sequence[str],
        stdin: str | None,
        kubeconfig: Path | None,
        *,
        seconds: float = COMMAND_SECONDS,
    ) -> str:
        env = environment(self._layout) | {"KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        return run_command(argv, env=env, stdin=stdin, seconds=seconds)

    def _admin_context(self) -> ssl.SSLContext:
        pair = self._authority.client(_ADMIN, groups=_ADMIN_GROUPS)
        return client_context(self._authority.certificate, pair)

    def _ensure_simulator(self) -> None:
        state = self.components.states().get(SIMULATOR)
        if state is None:
            (port,) = free_ports(1)
            self.components.run(self._plane.simulator(port))
        elif state == "dead":
            raise LabError(f"the simulator ended by itself; see {self.log(SIMULATOR)}")

    def _claim(self, settings: Settings) -> None:
        """Take the folder for this run; whoever comes second is told."""
        self.state.mkdir(parents=True, exist_ok=True)
        try:
            with self._layout.settings.open("xb") as file:
                file.write(msgspec.json.encode(settings))
        except FileExistsError:
            raise LabError(
                f"a lab is kept in {self.state} already: use it, remove it with `python -m tests.lab down`, "
                "or choose another folder with --state"
            ) from None
        shutil.rmtree(self.logs, ignore_errors=True)

    def _start(self, *, with_node: bool) -> None:
        plane = self._plane
        create_credentials(plane)
        write_kubectl(plane)
        startup = Startup(plane, self.components, self.api, self._progress)
        if with_node:
            machine.claim(self.state)  # Before the API server, which listens on the bridge's address.
        startup.control_plane()
        if with_node:
            startup.node()


def _choose_ports() -> dict[str, int]:
    names = (ETCD, "etcd-peer", API_SERVER, CONTROLLER_MANAGER, SCHEDULER, *NODE_PORTS)
    return dict(zip(names, free_ports(len(names)), strict=True))
