"""The real node: containerd with runc, kubelet and kube-proxy, as components beside the control plane."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.lab import cgroups, images, machine
from tests.lab.controlplane import LOOPBACK, READY_SECONDS, ControlPlane, environment
from tests.lab.errors import LabError
from tests.lab.process import Health, Program

NAME = "real-1"
CONTAINERD = "containerd"
KUBELET = "kubelet"
KUBE_PROXY = "kube-proxy"
PORTS = (KUBELET, "kubelet-health", "kube-proxy-health", "kube-proxy-metrics")
KUBELET_FOLDER = machine.DATA / "kubelet"
CDI_FOLDER = machine.RUN / "cdi"

_SOCKET = machine.RUN / "containerd" / "containerd.sock"
_CNI_FOLDER = machine.RUN / "cni"
_POLL_SECONDS = 0.05

# Where a plugin would write outside of the lab's folders, it is sent inside; those that probe for file systems or
# devices which no test uses are off.
_CONTAINERD_CONFIG = f"""\
version = 3
root = "{machine.DATA}/containerd"
state = "{machine.RUN}/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{_SOCKET}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{images.PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # Root may lack CAP_SYS_RESOURCE, and runc dies when it cannot lower the score.
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["{CDI_FOLDER}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{machine.CNI_PLUGINS}"]
    conf_dir = "{_CNI_FOLDER}/net.d"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
        Root = "{machine.RUN}/runc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{machine.DATA}/opt"
[plugins."io.containerd.nri.v1.nri"]
  socket_path = "{machine.RUN}/nri/nri.sock"
  plugin_path = "{machine.RUN}/nri/plugins"
  plugin_config_path = "{machine.RUN}/nri/conf.d"
"""

_NETWORK: dict[str, Any] = {
    "cniVersion": "1.0.0",
    "name": machine.CNI_NETWORK,
    "plugins": [
        {
            "type": "bridge",
            "bridge": machine.BRIDGE,
            "isDefaultGateway": True,
            "hairpinMode": True,  # A pod may reach itself through its Service.
            "ipam": {
                "type": "host-local",
                "dataDir": f"{_CNI_FOLDER}/addresses",
                "ranges": [[{"subnet": machine.POD_RANGE}]],
            },
        }
    ],
}


def is_ready(node: dict[str, Any]) -> bool:
    """Whether a Node object is ready and the scheduler may use it."""
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions", ())
    }
    return conditions.get("Ready") == "True" and not node["spec"].get("taints")


@dataclass(frozen=True, slots=True)
class Node:
    """Builds the node's programs and runs containerd's client; the lab starts and stops them."""

    plane: ControlPlane

    def containerd(self) -> Program:
        for folder in (CDI_FOLDER, _CNI_FOLDER / "net.d"):
            folder.mkdir(parents=True, exist_ok=True)
        (_CNI_FOLDER / "net.d" / "10-lab.conflist").write_text(json.dumps(_NETWORK))
        config = self.plane.layout.configs / "containerd.toml"
        config.write_text(_CONTAINERD_CONFIG)
        return self._program(CONTAINERD, self._binary(CONTAINERD), f"--config={config}")

    def kubelet(self) -> Program:
        port = self.plane.settings.ports["kubelet-health"]
        config = self.plane.write_config("kubelet", self._kubelet_config(port))
        file = self.plane.write_kubeconfig(f"system:node:{NAME}", groups=["system:nodes"])
        return self._program(
            KUBELET,
            self.plane.binary,
            KUBELET,
            f"--config={config}",
            f"--kubeconfig={file}",
            f"--root-dir={KUBELET_FOLDER}",
            f"--hostname-override={NAME}",
            f"--node-ip={machine.BRIDGE_IP}",
            health=Health(port=port, path="/healthz", tls=False),
        )

    def kube_proxy(self) -> Program:
        port = self.plane.settings.ports["kube-proxy-health"]
        config = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self.plane.write_kubeconfig("system:kube-proxy"))},
            "clusterCIDR": machine.POD_RANGE,
            "hostnameOverride": NAME,
            # Pods share the bridge, so an answer from pod to pod would pass by the rules that must turn its
            # address back; through the node's address it does not.
            "nftables": {"masqueradeAll": True},
            "healthzBindAddress": f"{LOOPBACK}:{port}",
            "metricsBindAddress": f"{LOOPBACK}:{self.plane.settings.ports['kube-proxy-metrics']}",
            # The machine's limits of connection tracking stay as they are.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
        }
        file = self.plane.write_config(KUBE_PROXY, config)
        health = Health(port=port, path="/livez", tls=False)
        return self._program(KUBE_PROXY, self.plane.binary, KUBE_PROXY, f"--config={file}", health=health)

    def wait_for_containerd(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while (done := self._ctr("version")).returncode != 0:
            if time.monotonic() > deadline:
                raise LabError(f"containerd does not answer: {done.stderr.strip()}")
            time.sleep(_POLL_SECONDS)

    def import_image(self, archive: Path) -> None:
        """Make the images of an OCI or Docker archive known to the node."""
        done = self._ctr("--namespace=k8s.io", "images", "import", str(archive))
        if done.returncode != 0:
            raise LabError(f"containerd cannot import {archive}: {done.stderr.strip()}")

    def import_own_images(self) -> None:
        layer = images.busybox_layer()
        archive = machine.RUN / "image.tar"
        for reference, command in ((images.BUSYBOX, ["sh"]), (images.PAUSE, ["sleep", "2147483647"])):
            images.archive(archive, reference, layer, command=command)
            self.import_image(archive)
        archive.unlink()

    def _kubelet_config(self, health_port: int) -> dict[str, Any]:
        settings, authority = self.plane.settings, self.plane.authority
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{cgroups.NAME}",
            "enforceNodeAllocatable": [],
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(authority.serving.certificate),
            "tlsPrivateKeyFile": str(authority.serving.key),
            "address": machine.BRIDGE_IP,
            "port": settings.ports[KUBELET],
            "healthzPort": health_port,
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "podLogsDir": f"{machine.DATA}/pod-logs",
            "volumePluginDir": f"{machine.DATA}/volume-plugins",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,  # kube-proxy's are nftables; the machine's iptables stay untouched.
            "nodeStatusUpdateFrequency": "5s",
            # A test's node must not evict because the machine's disk is nearly full.
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,  # Images come from no registry and cannot come back.
            "featureGates": settings.feature_gates,
        }

    def _ctr(self, *args: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._binary("ctr")), f"--address={_SOCKET}", *args]
        return subprocess.run(
            command,
            env=environment(self.plane.layout),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def _binary(self, name: str) -> Path:
        return Path(self.plane.settings.binaries, name)

    def _program(self, name: str, *argv: str | Path, health: Health | None = None) -> Program:
        env = environment(self.plane.layout)
        env["PATH"] = f"{self.plane.settings.binaries}:{env['PATH']}"  # containerd looks for its shim there.
        return Program(
            name=name,
            argv=[str(word) for word in argv],
            env=env,
            health=health,
            cgroups=[str(cgroups.programs_group())],
        )
