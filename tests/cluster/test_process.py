"""`tenure serve` on the real API server: it drains without a failed call, and outlives the API server."""

import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service import names
from tests.cluster.process import HOST, Callers, Server, pod, serving
from tests.lab import Lab
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.product import NAMESPACE, Product

# Programs start and an API server is away for 20 s: on a busy machine that is more than the usual two minutes.
pytestmark = pytest.mark.timeout(300)

LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/tenure"
API_SERVER = "kube-apiserver"
DRAIN_S = 6
AWAY_S = 20.0
# Seconds in which an answer to a call that was sent before the signal may still come.
FLIGHT_S = 1.0


@pytest.fixture(scope="module", autouse=True)
def _installed(lab: Lab) -> Iterator[None]:
    Product(lab).install()
    yield
    lab.kubectl("delete", "mutatingwebhookconfiguration", "tenure", "--ignore-not-found")


def holder(lab: Lab) -> str:
    found: str = lab.api.ok(Call("GET", LEASE))["spec"].get("holderIdentity") or ""
    return found


def leads(server: Server) -> bool:
    return 'tenure_lease_held{lease="tenure"} 1.0' in server.get("/metrics")[1]


def test_sigterm_under_load_fails_no_call(lab: Lab, tmp_path: Path) -> None:
    with serving(lab, tmp_path, http__drain_s=str(DRAIN_S)) as server:
        server.until("/metrics", lambda _, text: 'tenure_lease_held{lease="tenure"} 1.0' in text)
        assert holder(lab)
        with server.callers() as callers:
            time.sleep(2)
            signalled = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            server.until("/readyz", lambda status, text: status == 503 and "is draining" in text, FLIGHT_S)
            assert server.get("/livez")[0] == 200
            time.sleep(DRAIN_S - 2 - (time.monotonic() - signalled))  # then no endpoint names it any more
        assert server.process.wait(DRAIN_S + 20) == 0
        ended = time.monotonic() - signalled
        drained = callers.since(signalled + FLIGHT_S)
        assert callers.failures() == []
        assert {answer.path for answer in drained} == {"/admission/pods", "/scheduler/filter"}
        assert all(answer.closes for answer in drained)
        assert not any(answer.closes for answer in callers.answers if answer.at < signalled - FLIGHT_S)
        assert ended >= DRAIN_S
        assert holder(lab) == ""
        server.assert_log_has_no_fault()
        assert server.events()[-1] | {"timestamp": ""} == {
            "timestamp": "",
            "level": "info",
            "event": "stopped",
            "exit_code": 0,
            "logger": "service.lifecycle",
        }


def test_another_replica_leads_at_once_when_the_leader_ends(lab: Lab, tmp_path: Path) -> None:
    with (
        serving(lab, tmp_path, http__drain_s="0") as first,
        serving(lab, tmp_path, register=False, http__drain_s="0") as second,
    ):
        first.until("/metrics", lambda *_: leads(first) or leads(second))
        leader, other = (first, second) if leads(first) else (second, first)
        leader.process.send_signal(signal.SIGTERM)
        assert leader.process.wait(30) == 0
        ended = time.monotonic()
        other.until("/metrics", lambda *_: leads(other), 14)
        assert (
            time.monotonic() - ended < 14
        )  # without the release it would be the lease's 15 s after its renewal
        other.assert_log_has_no_fault()


def test_the_server_goes_on_without_the_api_server_and_finds_it_again(
    lab: Lab, namespace: str, tmp_path: Path
) -> None:
    with serving(lab, tmp_path) as server:
        with server.callers(connections=1) as callers:
            lab.components.kill(API_SERVER)
            try:
                away = time.monotonic()
                while time.monotonic() < away + AWAY_S:
                    assert server.get("/readyz")[0] == 200
                    assert server.get("/livez")[0] == 200
                    assert server.get("/api/v1/servers")[0] == 200
                    time.sleep(0.5)
            finally:
                lab.components.start(API_SERVER)
                lab.restart_controllers()
        assert_served(callers)
        create(lab, namespace, "after")
        found = lab.wait_for(f"/api/v1/namespaces/{namespace}/pods/after")
        assert {"name": names.GATE} in found["spec"]["schedulingGates"]
        path = f"/api/v1/explain/{namespace}/after"
        server.until(path, lambda status, text: status == 200 and '"state":"waiting"' in text, 60)
        assert server.process.poll() is None
        server.assert_log_has_no_fault()


def test_without_a_pool_claims_are_checked_and_the_pool_says_that_it_is_off(lab: Lab, tmp_path: Path) -> None:
    with serving(
        lab,
        tmp_path,
        pool__resource_count_name="",
        pool__resource_memory_name="",
        claims__interval_s="5",
        http__drain_s="0",
    ) as server:
        status, text = server.get("/api/v1/servers")
        assert (status, "remote GPUs are off" in text) == (404, True)
        server.until("/metrics", lambda _, text: "tenure_claims_checks_total 1.0" in text.splitlines())
        assert "tenure_pool_free_cards" not in server.get("/metrics")[1]
        assert server.get("/")[0] == 200
        server.process.terminate()
        assert server.process.wait(30) == 0
        server.assert_log_has_no_fault()


def assert_served(callers: Callers) -> None:
    """Admission needs nobody. The extender says no to an unknown pod, but it says so."""
    assert len(callers.answers) > 20
    assert callers.failures() == []


def create(lab: Lab, namespace: str, name: str) -> None:
    lab.api.ok(Call("POST", f"/api/v1/namespaces/{namespace}/pods", pod(name)))


@pytest.mark.node
def test_the_commands_find_the_server_through_the_api_server(
    lab: Lab, namespace: str, tmp_path: Path
) -> None:
    with serving(lab, tmp_path, http__ops_host="0.0.0.0") as server:  # noqa: S104 - the API server calls the bridge
        publish(lab, server)
        create(lab, namespace, "waits")
        server.until(f"/api/v1/explain/{namespace}/waits", lambda _, text: '"state":"waiting"' in text, 60)
        admin = lab.kubeconfig
        code, out, err = tenure(admin, "explain", f"{namespace}/waits", "--output", "json")
        assert (code, err.strip()) == (1, "")
        assert json.loads(out)["pod"] == f"{namespace}/waits"
        assert tenure(admin, "explain", f"{namespace}/nobody")[0] == 2
        code, _, err = tenure(lab.kubeconfig_for("a-tenant"), "pool")
        assert code == 2
        assert "you may not ask service tenure:ops in namespace tenure-system" in err
        code, _, err = tenure(admin, "pool", "--namespace", namespace)
        assert code == 2
        assert f"there is no service tenure:ops in namespace {namespace}" in err
        lab.kubectl("delete", "-n", NAMESPACE, "service/tenure", "pod/tenure-server")
        code, _, err = tenure(admin, "pool")
        assert code == 2
        assert "--server URL" in err


def publish(lab: Lab, server: Server) -> None:
    """A Service like the chart's, and a pod at the server's address: the API server's proxy goes to nothing else."""
    address, ports = lab.settings.host, [{"name": "ops", "port": server.replica.ops}]
    metadata = {"name": "tenure", "namespace": NAMESPACE}
    stand_in = pod("tenure-server")
    stand_in["spec"]["schedulerName"] = "nobody"
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    made = lab.api.ok(Call("POST", path, stand_in))
    status = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    lab.api.ok(Call("PATCH", f"{path}/tenure-server/status", status, "application/merge-patch+json"))
    target = {"kind": "Pod", "namespace": NAMESPACE, "name": "tenure-server", "uid": made["metadata"]["uid"]}
    endpoint = {"addresses": [{"ip": address, "targetRef": target}], "ports": ports}
    lab.apply(
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": ports}},
        {"apiVersion": "v1", "kind": "Endpoints", "metadata": metadata, "subsets": [endpoint]},
    )


def tenure(kubeconfig: Path, *arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "service", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY), "KUBECONFIG": str(kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_what_is_not_tls_or_not_http_is_not_logged(lab: Lab, tmp_path: Path) -> None:
    with serving(lab, tmp_path) as server:
        before = len(server.events())
        for _ in range(50):
            shout(server.replica.webhook, b"GET / HTTP/1.1\r\n\r\n")
            for port in (server.replica.extender, server.replica.ops):
                shout(port, b"\x16\x03\x01 rubbish\r\n\r\n")
            refuse_certificate(server.replica.webhook)
        assert server.get("/livez")[0] == 200
        speakers = ("service.http", "aiohttp", "asyncio", "uvloop")
        noise = [event for event in server.events()[before:] if event["logger"].startswith(speakers)]
        assert noise == []
        text = server.get("/metrics")[1]
        assert 'tenure_http_malformed_requests_total{listener="extender"} 50.0' in text
        assert 'tenure_http_malformed_requests_total{listener="ops"} 50.0' in text


def shout(port: int, what: bytes) -> None:
    with socket.create_connection((HOST, port), timeout=10) as connection:
        connection.sendall(what)
        with contextlib.suppress(ConnectionResetError):
            while connection.recv(4096):
                pass


def refuse_certificate(port: int) -> None:
    """As an API server with another CA does: the handshake ends with an alert."""
    strict = ssl.create_default_context()
    with socket.create_connection((HOST, port), timeout=10) as connection, pytest.raises(ssl.SSLError):
        strict.wrap_socket(connection, server_hostname="localhost")
