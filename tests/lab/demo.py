"""`make run`: a real cluster, Tenure in it, and the main job done in front of a person."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from service import names
from tests.lab.api import Call
from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.lab.layout import REPOSITORY
from tests.lab.product import Product, Replica
from tests.lab.progress import progress
from tests.lab.simulated import SimulatedNode

_IMAGE = "lab.local/busybox:1"
_SERVERS = {"gpu-h200": "json-remote-h200", "gpu-a100": "json-remote-a100-four-cards"}
_FIXTURES = REPOSITORY / "tests" / "fixtures" / "hami" / "node-nvidia-register.json"
_PODS = "/api/v1/namespaces/default/pods"
_SECONDS = 60.0
_POLL_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Run:
    """What the steps share."""

    lab: Lab
    replica: Replica
    console: Console


def main() -> int:
    """Start everything, show it, write the summary. Exit code 1 when something did not happen."""
    console = Console()
    lab = Lab(progress=progress)
    lab.down()
    try:
        run = _start(lab, console)
        summary = {
            "pod": _gets_a_card(run),
            "forged": _loses_forged_keys(run),
            "waiting": _waits_for_a_card(run),
        }
        _write(run, summary)
        _say_where(run)
    except LabError as error:
        console.print(f"[bold]make run stopped:[/bold] {error}", highlight=False)
        return 1
    return 0


def _start(lab: Lab, console: Console) -> Run:
    lab.up(node=True)
    registers = json.loads(_FIXTURES.read_text())
    nodes = [_server(name, registers[key], number) for number, (name, key) in enumerate(_SERVERS.items(), 1)]
    if lab.node_missing:
        console.print(f"No real node: {lab.node_missing}. A simulated one takes the pods; they run nothing.")
        nodes.append(SimulatedNode(name="client", address="10.77.0.9"))
    product = Product(lab)
    with progress("Tenure"):
        product.install()
        lab.simulate_nodes(nodes)
        replica = product.prepare()
        product.register_webhook(replica)
        product.run(replica)
        product.start_scheduler(replica)
    return Run(lab, replica, console)


def _server(name: str, register: str, number: int) -> SimulatedNode:
    """A node that serves its cards with lupine, as HAMi's device plugin registers it."""
    return SimulatedNode(
        name=name,
        address=f"10.77.0.{number}",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: register},
    )


def _pod(
    name: str, *, cards: int, mib: int = 0, annotations: Mapping[str, str] | None = None
) -> dict[str, Any]:
    limits = {names.REMOTE_GPU: str(cards)} | ({names.REMOTE_GPU_MEMORY: str(mib)} if mib else {})
    command = ["sh", "-c", f'echo "{names.LUPINE_SERVER_ENV}=$LUPINE_SERVER"; sleep 1d']
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": dict(annotations or {})},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {"name": "main", "image": _IMAGE, "command": command, "resources": {"limits": limits}}
            ],
        },
    }


def _create(run: Run, pod: dict[str, Any]) -> None:
    run.lab.kubectl("create", "-f", "-", stdin=json.dumps(pod))


def _gets_a_card(run: Run) -> dict[str, Any]:
    """A pod asks for one card with a lot of memory, so it must come from the H200 server."""
    run.console.rule("A pod asks for a remote GPU")
    _create(run, _pod("first", cards=1, mib=100_000))
    found = _running(run, "first")
    row = _row(run, found)
    _table(run, "What it got", row)
    return row


def _loses_forged_keys(run: Run) -> dict[str, Any]:
    """A pod arrives with an allocation that nobody gave it."""
    run.console.rule("A pod arrives with forged allocation annotations")
    forged = {
        names.LUPINE_ENDPOINT: "203.0.113.9:14833",
        names.DEVICES_ALLOCATED: "gpu-h200/GPU-forged,NVIDIA,143771,100:;",
        names.ALLOCATION_PREFIX + "main": "GPU-forged",
        "example.com/mine": "kept",
    }
    pod = _pod("forger", cards=0, annotations=forged)
    del pod["spec"]["containers"][0]["resources"]
    _create(run, pod)
    kept = run.lab.wait_for(f"{_PODS}/forger")["metadata"].get("annotations", {})
    left = {key: kept.get(key) for key in forged}
    table = _folding("annotation", "sent", "what is left", title="Forged keys")
    for key, value in forged.items():
        table.add_row(key, value, left[key] or "removed")
    run.console.print(table)
    return {"sent": forged, "left": {key: value for key, value in left.items() if value is not None}}


def _waits_for_a_card(run: Run) -> dict[str, Any]:
    """A pod wants both large cards while one is taken: it waits, and runs when that one is given back."""
    run.console.rule("A pod finds no card, and waits")
    _create(run, _pod("second", cards=2, mib=100_000))
    time.sleep(2)  # Long enough for a scheduler to have bound it, if it were let in.
    before = run.lab.wait_for(f"{_PODS}/second")
    conditions = before["status"].get("conditions", [])
    state = next((c["reason"] for c in conditions if c["type"] == "PodScheduled"), "none")
    run.console.print(f"second is [bold]{state}[/bold]. Now the first pod is deleted.")
    run.lab.kubectl("delete", "pod", "first", "--wait=false")
    _until(run, "first", lambda pod: pod is None)
    free = time.monotonic()
    _until(run, "second", lambda pod: bool(pod and pod["spec"].get("nodeName")))
    seconds = round(time.monotonic() - free, 3)
    row = _row(run, _running(run, "second"))
    _table(run, f"Bound {seconds} s after the card became free", row)
    return row | {"waited_as": state, "bound_after_s": seconds}


def _until(run: Run, name: str, accept: Callable[[Any], bool]) -> None:
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        answer = run.lab.api.request(Call("GET", f"{_PODS}/{name}"))
        if accept(None if answer.status == 404 else answer.json()):
            return
        time.sleep(_POLL_SECONDS)
    raise LabError(f"pod {name} was not as wanted within {_SECONDS:.0f} s")


def _running(run: Run, name: str) -> Any:
    return run.lab.wait_for(
        f"{_PODS}/{name}", accept=lambda pod: pod["status"].get("phase") == "Running", seconds=_SECONDS
    )


def _row(run: Run, pod: Any) -> dict[str, Any]:
    notes = pod["metadata"]["annotations"]
    name = pod["metadata"]["name"]
    encoded = notes[names.DEVICES_ALLOCATED]
    pieces = [piece.split(",")[0] for piece in encoded.replace(";", "").split(":") if piece]
    server = pieces[0].partition("/")[0]
    status = run.lab.wait_for(f"/apis/tenure.dev/v1alpha1/remoteservers/{server}")["status"]
    return {
        "pod": f"default/{name}",
        "node": pod["spec"]["nodeName"],
        "server": server,
        "cards": [piece.partition("/")[2] for piece in pieces],
        "server_endpoint": status["endpoint"],
        "annotation": notes[names.LUPINE_ENDPOINT],
        "container": _printed(run, name),
    }


def _printed(run: Run, name: str) -> str | None:
    """The LUPINE_SERVER that the container printed; None on a simulated node, where nothing runs."""
    if run.lab.node_missing:
        return None
    deadline = time.monotonic() + _SECONDS
    while time.monotonic() < deadline:
        for line in run.lab.kubectl("logs", name).splitlines():
            if line.startswith(f"{names.LUPINE_SERVER_ENV}="):
                return line.partition("=")[2]
        time.sleep(_POLL_SECONDS)
    raise LabError(f"the container of pod {name} printed nothing")


def _table(run: Run, title: str, row: Mapping[str, Any]) -> None:
    table = _folding("", "", title=title)
    labels = {
        "pod": "pod",
        "node": "runs on node",
        "server": "server of its cards",
        "cards": "cards",
        "annotation": f"annotation {names.LUPINE_ENDPOINT}",
        "container": "LUPINE_SERVER in the container",
    }
    for key, label in labels.items():
        value = row[key]
        table.add_row(label, "\n".join(value) if isinstance(value, list) else str(value or "(nothing runs)"))
    run.console.print(table)


def _folding(*headers: str, title: str) -> Table:
    """A table that breaks long cells and never cuts them: people copy card ids."""
    table = Table(title=title, show_header=any(headers))
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def _write(run: Run, summary: Mapping[str, Any]) -> None:
    path = run.lab.state / "summary.json"
    path.write_text(json.dumps(summary, indent=2) + "\n")


def _say_where(run: Run) -> None:
    """Plain lines, so that they can be copied whole."""
    lines = {
        "status page": f"{run.replica.url}/",
        "metrics": f"{run.replica.url}/metrics",
        "the cluster": f"export KUBECONFIG={_relative(run.lab.kubeconfig)}",
        "look around": f".venv/bin/tenure pool --server {run.replica.url}",
        "same as JSON": _relative(run.lab.state / "summary.json"),
        "end it": "make stop",
    }
    run.console.rule("Everything is left running")
    for label, text in lines.items():
        run.console.print(f"{label:<13} {text}", highlight=False, soft_wrap=True)


def _relative(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


if __name__ == "__main__":
    sys.exit(main())
