"""The lab's real node: what tests of pods, volumes and Services stand on."""

import io
import json
import tarfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab, LabError, images
from tests.lab.api import Call
from tests.lab.controlplane import API_SERVICE_IP

pytestmark = pytest.mark.node

SERVE_A_PAGE = "mkdir /tmp/www; echo page > /tmp/www/index.html; exec httpd -f -p 8080 -h /tmp/www"


def test_a_pod_runs_and_its_logs_and_shell_are_reached(lab: Lab, namespace: str) -> None:
    start(lab, namespace, "p", "echo hello; sleep 1d")
    assert lab.kubectl("logs", "p", "-n", namespace) == "hello\n"
    assert lab.kubectl("exec", "p", "-n", namespace, "--", "hostname") == "p\n"


def test_a_pod_that_ends_is_seen_to_end(lab: Lab, namespace: str) -> None:
    lab.apply(pod(namespace, "p", "exit 3", restartPolicy="Never"))
    ended = lab.wait_for(path(namespace, "p"), accept=lambda found: found["status"]["phase"] == "Failed")
    assert ended["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


def test_a_user_without_root_runs_where_pod_security_is_restricted(lab: Lab, namespace: str) -> None:
    lab.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    security = {
        "runAsUser": 1000,
        "runAsNonRoot": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    start(lab, namespace, "p", "sleep 1d", container={"securityContext": security})
    assert lab.kubectl("exec", "p", "-n", namespace, "--", "id", "-u") == "1000\n"


def test_a_service_is_reached_from_the_machine_another_pod_and_its_own_pod(lab: Lab, namespace: str) -> None:
    start(lab, namespace, "web", SERVE_A_PAGE)
    start(lab, namespace, "client", "sleep 1d")
    spec = {"selector": {"name": "web"}, "ports": [{"port": 80, "targetPort": 8080}]}
    metadata = {"name": "web", "namespace": namespace}
    lab.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    service = lab.api.ok(Call("GET", f"/api/v1/namespaces/{namespace}/services/web"))
    url = f"http://{service['spec']['clusterIP']}/"

    # The rules come a moment after the Service: the client in the pod waits for them.
    get = f"for i in $(seq 50); do timeout 5 wget -qO- {url} && exit; sleep 0.2; done; exit 1"
    assert lab.kubectl("exec", "client", "-n", namespace, "--", "sh", "-c", get) == "page\n"
    assert lab.kubectl("exec", "web", "-n", namespace, "--", "sh", "-c", get) == "page\n"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        assert answer.read() == b"page\n"


def test_a_pod_reaches_the_api_server_at_its_service_address(lab: Lab, namespace: str) -> None:
    start(lab, namespace, "p", "sleep 1d")
    ask = f"printf 'GET /version HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {API_SERVICE_IP} 443"
    answer = lab.kubectl("exec", "p", "-n", namespace, "--", "sh", "-c", ask)
    assert "Client sent an HTTP request to an HTTPS server" in answer


def test_an_imported_root_file_system_is_an_image(lab: Lab, namespace: str, tmp_path: Path) -> None:
    layer = tmp_path / "rootfs.tar"
    layer.write_bytes(images.busybox_layer())
    with tarfile.open(layer, "a") as tar:
        entry = tarfile.TarInfo("word")
        entry.size = 5
        tar.addfile(entry, io.BytesIO(b"built"))
    lab.import_rootfs("lab.local/mine:1", layer, command=["sleep", "1d"], environment={"COLOUR": "blue"})
    start(lab, namespace, "p", "sleep 1d", container={"image": "lab.local/mine:1"})
    seen = lab.kubectl("exec", "p", "-n", namespace, "--", "sh", "-c", "cat /word; echo $COLOUR")
    assert seen == "builtblue\n"


def test_the_kubelet_has_no_right_to_other_nodes(lab: Lab) -> None:
    kubelet = lab.kubeconfig_for(f"system:node:{lab.node_name}", groups=["system:nodes"])
    lab.kubectl("label", "node", lab.node_name, "its=own", kubeconfig=kubelet)
    other = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "other"}}
    with pytest.raises(LabError, match="is not allowed to modify node"):
        lab.kubectl("create", "-f", "-", stdin=json.dumps(other), kubeconfig=kubelet)


def test_a_restarted_kubelet_and_containerd_leave_pods_running(lab: Lab, namespace: str) -> None:
    before = start(lab, namespace, "p", "sleep 1d")
    lab.components.kill("containerd")
    lab.components.kill("kubelet")
    lab.components.start("containerd")
    lab.components.start("kubelet")
    lab.wait_for(f"/api/v1/nodes/{lab.node_name}", accept=lambda node: not node["spec"].get("taints"))
    after = lab.api.ok(Call("GET", path(namespace, "p")))
    assert container_id(after) == container_id(before)
    assert in_time(lambda: lab.kubectl("exec", "p", "-n", namespace, "--", "hostname")) == "p\n"


def in_time(ask: Callable[[], str]) -> str:
    """The answer as soon as there is one: a kubelet that has just started does not know its pods yet."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return ask()
        except LabError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def start(lab: Lab, namespace: str, name: str, script: str, **more: Any) -> Any:
    lab.apply(pod(namespace, name, script, **more))
    return lab.wait_for(path(namespace, name), accept=lambda found: found["status"]["phase"] == "Running")


def pod(
    namespace: str, name: str, script: str, *, container: Mapping[str, Any] | None = None, **spec: Any
) -> dict[str, Any]:
    command: Sequence[str] = ["sh", "-c", script]
    main = {"name": "main", "image": images.BUSYBOX, "command": command, **(container or {})}
    metadata = {"name": name, "namespace": namespace, "labels": {"name": name}}
    full = {"terminationGracePeriodSeconds": 0, "containers": [main], **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": full}


def path(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def container_id(found: Mapping[str, Any]) -> str:
    return str(found["status"]["containerStatuses"][0]["containerID"])
