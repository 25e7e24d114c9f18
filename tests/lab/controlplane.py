"""How the control plane's programs are started: their flags, and why each one is set."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.lab.credentials import Authority, Pair, kubeconfig, write_secret
from tests.lab.layout import REPOSITORY, Layout, Settings
from tests.lab.process import Health, Program
from tests.lab.simulated import SIMULATOR, SIMULATOR_USER

LOOPBACK = "127.0.0.1"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"

ETCD = "etcd"
API_SERVER = "kube-apiserver"
CONTROLLER_MANAGER = "kube-controller-manager"
SCHEDULER = "kube-scheduler"
SCHEDULER_USER = "system:kube-scheduler"

# Clients' default limits (20 to 50 requests a second) are for clusters that must be protected from
# themselves; with a thousand simulated nodes they would be the only thing that a test measures.
_CLIENT_QPS = 500
_CLIENT_BURST = 1000

# How long a node may be silent. The default of 50 s is the time that an API server is away in some tests, and that
# simulated nodes wait on a busy machine; and no test waits 50 s to see a node given up: it writes the condition.
NODE_GRACE = "3m"

# A deadline for the machine's worst day; a program that ends by itself is reported at once.
READY_SECONDS = 120.0

_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def environment(layout: Layout) -> dict[str, str]:
    """No proxy settings and no home folder of the person who starts the lab reach its programs."""
    return {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(layout.state)}


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """Builds the programs of one lab; starts nothing."""

    layout: Layout
    settings: Settings
    authority: Authority

    @property
    def binary(self) -> Path:
        """All of Kubernetes and etcd; its first argument says which program it is."""
        return Path(self.settings.binaries, "cluster")

    @property
    def server(self) -> str:
        return f"https://{self.settings.host}:{self.settings.ports[API_SERVER]}"

    @property
    def etcd_url(self) -> str:
        return f"https://{LOOPBACK}:{self.settings.ports[ETCD]}"

    def etcd(self) -> Program:
        peer = f"https://{LOOPBACK}:{self.settings.ports['etcd-peer']}"
        pair = self.authority.serving
        return self._program(
            ETCD,
            "--name=lab",
            f"--data-dir={self.layout.etcd}",
            "--unsafe-no-fsync",  # The data is thrown away with the lab.
            "--log-level=warn",
            f"--listen-client-urls={self.etcd_url}",
            f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=lab={peer}",
            # Clients are verified, so that no other lab's API server can ever write into this etcd.
            "--client-cert-auth",
            f"--trusted-ca-file={self.authority.certificate}",
            f"--cert-file={pair.certificate}",
            f"--key-file={pair.key}",
            "--peer-client-cert-auth",
            f"--peer-trusted-ca-file={self.authority.certificate}",
            f"--peer-cert-file={pair.certificate}",
            f"--peer-key-file={pair.key}",
            health=Health(port=self.settings.ports[ETCD], path="/health"),
        )

    def api_server(self) -> Program:
        settings, authority = self.settings, self.authority
        etcd_client = authority.client("etcd-client")
        kubelet_client = authority.client("lab:kubelet-client", groups=["system:masters"])
        policy = self.write_config("audit-policy", _AUDIT_POLICY)
        port = settings.ports[API_SERVER]
        return self._program(
            API_SERVER,
            f"--etcd-servers={self.etcd_url}",
            f"--etcd-cafile={authority.certificate}",
            f"--etcd-certfile={etcd_client.certificate}",
            f"--etcd-keyfile={etcd_client.key}",
            f"--bind-address={settings.host}",
            f"--advertise-address={settings.host}",
            f"--secure-port={port}",
            *self._serving_flags(),
            f"--client-ca-file={authority.certificate}",
            f"--service-cluster-ip-range={SERVICE_RANGE}",
            # An address of the loopback is no valid endpoint of the Service `kubernetes`.
            *(["--endpoint-reconciler-type=none"] if settings.host == LOOPBACK else []),
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={authority.service_account_key}",
            f"--service-account-signing-key-file={authority.service_account_key}",
            f"--kubelet-client-certificate={kubelet_client.certificate}",
            f"--kubelet-client-key={kubelet_client.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.layout.audit_log}",
            *self.feature_gate_flags(),
            *settings.api_server_flags,
            health=Health(host=settings.host, port=port, path="/readyz"),
        )

    def controller_manager(self) -> Program:
        port = self.settings.ports[CONTROLLER_MANAGER]
        file = self.write_kubeconfig("system:kube-controller-manager")
        return self._program(
            CONTROLLER_MANAGER,
            f"--kubeconfig={file}",
            *self._delegation_flags(file),
            f"--kube-api-qps={_CLIENT_QPS}",
            f"--kube-api-burst={_CLIENT_BURST}",
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            *self._serving_flags(),
            "--leader-elect=false",
            f"--node-monitor-grace-period={NODE_GRACE}",
            # It writes a caching hint on every node each time their number passes a mark, for kubelets of long ago.
            "--controllers=*,-ttl-controller",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={self.authority.service_account_key}",
            f"--root-ca-file={self.authority.certificate}",
            f"--cluster-signing-cert-file={self.authority.certificate}",
            f"--cluster-signing-key-file={self.authority.key}",
            *self.feature_gate_flags(),
            health=Health(port=port, path="/healthz"),
        )

    def scheduler(self, name: str, *, port: int, config: Mapping[str, Any], user: str) -> Program:
        """One kube-scheduler; connection and leader election are filled in where the config is silent."""
        file = self.write_kubeconfig(user)
        connection = {"kubeconfig": str(file), "qps": _CLIENT_QPS, "burst": _CLIENT_BURST}
        full = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
            **config,
            "clientConnection": connection | dict(config.get("clientConnection", {})),
        }
        return self._program(
            name,
            f"--config={self.write_config(name, full)}",
            *self._delegation_flags(file),
            f"--bind-address={LOOPBACK}",
            f"--secure-port={port}",
            *self._serving_flags(),
            *self.feature_gate_flags(),
            role=SCHEDULER,
            health=Health(port=port, path="/healthz"),
        )

    def simulator(self, port: int) -> Program:
        """The process that imitates the kubelets of simulated nodes."""
        pair = self.authority.client(SIMULATOR_USER, groups=["system:masters"])
        argv = [sys.executable, "-m", "tests.lab.simulator", f"--port={port}", f"--server={self.server}"]
        argv += [f"--authority={self.authority.certificate}"]
        argv += [f"--certificate={pair.certificate}", f"--key={pair.key}"]
        env = environment(self.layout) | {"PYTHONPATH": str(REPOSITORY), "PYTHONDONTWRITEBYTECODE": "1"}
        health = Health(port=port, path="/healthz", tls=False)
        return Program(name=SIMULATOR, argv=argv, env=env, health=health)

    def write_kubeconfig(self, user: str, *, groups: Sequence[str] = ()) -> Path:
        """A kubeconfig file with a certificate for this user and these groups."""
        pair = self.authority.client(user, groups=groups)
        return self.write_credential(pair.certificate.stem.removeprefix("client-"), user, pair)

    def write_credential(self, file: str, user: str, credential: Pair | str) -> Path:
        path = self.layout.kubeconfigs / f"{file}.kubeconfig"
        path.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
        text = kubeconfig(
            server=self.server,
            authority=self.authority.certificate,
            user=user,
            credential=credential,
        )
        write_secret(path, text.encode())
        return path

    def write_config(self, name: str, content: Mapping[str, Any]) -> Path:
        path = self.layout.configs / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(dict(content)))
        return path

    def feature_gate_flags(self) -> list[str]:
        gates = self.settings.feature_gates
        pairs = ",".join(f"{gate}={str(on).lower()}" for gate, on in sorted(gates.items()))
        return [f"--feature-gates={pairs}"] if pairs else []

    def _serving_flags(self) -> list[str]:
        pair = self.authority.serving
        return [f"--tls-cert-file={pair.certificate}", f"--tls-private-key-file={pair.key}"]

    def _delegation_flags(self, file: Path) -> list[str]:
        """The API server decides who may read the program's own metrics."""
        return [f"--authentication-kubeconfig={file}", f"--authorization-kubeconfig={file}"]

    def _program(self, name: str, *flags: str, health: Health, role: str | None = None) -> Program:
        argv = [str(self.binary), role or name, *flags]
        return Program(name=name, argv=argv, env=environment(self.layout), health=health)
