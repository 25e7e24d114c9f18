"""`tenure holders` and `tenure node --once --dry-run` as programs, with a real API server."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import occupancy
from tests.cluster.occupancy import CORDON, PROFILES, Seen
from tests.commands import sentence, tenure
from tests.lab import Lab
from tests.lab.api import Call
from tests.unit.occupancy.ground import FULL, FUSE, Cgroups, Ground, Programs

Run = Callable[..., Any]
CONTAINER = "c" * 64


@pytest.fixture
def seen(lab: Lab, namespace: str) -> Iterator[Seen]:
    """A node of the test's own, on which somebody cordoned a card."""
    occupancy.install_kinds(lab)
    occupancy.node(lab, namespace, annotations={CORDON: "GPU-x"})
    found = Seen(lab, namespace)
    yield found
    for profile in found.profiles():
        lab.api.request(Call("DELETE", f"{PROFILES}/{profile}"))
    lab.api.request(Call("DELETE", f"/api/v1/nodes/{namespace}"))


@pytest.fixture
def run(lab: Lab, seen: Seen, ground: Ground, tmp_path: Path) -> Run:
    """A command on that node, which sees the cards of the test alone."""
    file = tmp_path / "tenure.yaml"
    file.write_text(yaml.safe_dump({"node": {"name": seen.node}, "occupancy": ground.settings}))

    def run(*arguments: str, kubeconfig: Path | None = None, **changes: str) -> Any:
        return tenure(*arguments, "--config", file, KUBECONFIG=str(kubeconfig or lab.kubeconfig), **changes)

    return run


def profile(node: str, card: str, **extra: str) -> dict[str, Any]:
    return {
        "apiVersion": "airm.ai-computing.io/v1alpha1",
        "kind": "AcceleratorProfile",
        "metadata": {"name": f"{node}-{card}"},
        "spec": {"nodeName": node, "vendor": "acme", "model": "A1", "extra": {"id": card, **extra}},
    }


def test_the_holders_of_the_cluster_come_from_what_agents_published(lab: Lab, seen: Seen, run: Run) -> None:
    held = json.dumps([{"pid": 7, "command": "\x1b[2Jpython3", "managed": "host"}])
    lab.apply(
        profile(seen.node, "acme0", inUse="true", holders=held, health="busy", healthy="false"),
        profile(seen.node, "acme1", inUse="false", holders="[]"),
        profile(seen.node, "acme2"),
    )
    ran = run("holders", "--cluster")
    assert (ran.returncode, ran.stderr) == (1, "")
    mine = [line.split() for line in ran.stdout.splitlines() if line.startswith(seen.node)]
    assert [words[1:5] for words in mine] == [
        ["acme0", "acme", "A1", "host"],
        ["acme1", "acme", "A1", "free"],
        ["acme2", "acme", "A1", "unknown"],
    ]
    assert mine[0][5:] == [r"\x1b[2Jpython3", "(7,", "host)"]
    answer = json.loads(run("holders", "--cluster", "-o", "json").stdout)
    (card,) = (c for c in answer["cards"] if (c["node"], c["card"]) == (seen.node, "acme0"))
    assert card["holders"][0]["pid"] == 7


def test_a_cluster_without_profiles_is_told_so(run: Run) -> None:
    ran = run("holders", "--cluster", TENURE_OCCUPANCY__PROFILES__GROUP="nowhere.example")
    assert ran.returncode == 1
    assert "this cluster has no acceleratorprofiles: is the kind installed?" in ran.stdout


@pytest.mark.parametrize(
    ("arguments", "right"),
    [
        (["holders", "--cluster"], "the right to list acceleratorprofiles, or use --here on the node"),
        (["node", "--once", "--dry-run"], "the right to list pods and to get the node"),
    ],
)
def test_who_may_not_read_it_is_told_which_right_it_takes(
    lab: Lab, run: Run, arguments: list[str], right: str
) -> None:
    assert right in sentence(run(*arguments, kubeconfig=lab.kubeconfig_for("nobody")))


def test_this_machine_s_holders_are_called_by_their_pods_names_where_they_may_be_read(
    lab: Lab, seen: Seen, run: Run, ground: Ground, programs: Programs, cgroups: Cgroups
) -> None:
    container = {"name": "main", "image": "none"}
    made = lab.api.ok(
        Call(
            "POST",
            f"/api/v1/namespaces/{seen.node}/pods",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "train-0"},
                "spec": {"nodeName": seen.node, "containers": [container]},
            },
        )
    )
    pid = programs.opener(ground.node("acme0", FULL))
    cgroups.put_into_pod(pid, f"pod{made['metadata']['uid']}/{CONTAINER}")
    named, unnamed = run("holders"), run("holders", kubeconfig=lab.kubeconfig_for("nobody"))
    assert named.returncode == unnamed.returncode == 0
    assert f"({pid}, {seen.node}/train-0)" in named.stdout
    assert f"({pid}, k8s)" in unnamed.stdout
    assert "pods have no names: 403 Forbidden" in unnamed.stdout


def test_a_dry_run_prints_keys_label_and_cordon_and_writes_nothing(
    seen: Seen, run: Run, ground: Ground, programs: Programs
) -> None:
    pid = programs.opener(ground.node("acme0", FULL))
    ground.node("acme1", FUSE)
    before = seen.object()["metadata"]["resourceVersion"]
    ran = run("node", "--once", "--dry-run")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert f'    holders: [{{"pid":{pid},' in ran.stdout
    lines = [line for line in ran.stdout.splitlines() if "holders:" not in line]
    assert lines == [
        f"profile {seen.node}-acme0",
        "    inUse: true",
        "    health: busy",
        "    healthy: false",
        f"profile {seen.node}-acme1",
        "    inUse: false",
        "label airm.ai-computing.io/host-held: 1",
        "annotation hami.io/device-cordon: GPU-x",
    ]
    answer = json.loads(run("node", "--once", "--dry-run", "-o", "json").stdout)
    assert answer["profiles"][f"{seen.node}-acme0"]["healthy"] == "false"
    assert seen.profiles() == {}
    assert seen.object()["metadata"]["resourceVersion"] == before


def test_a_dry_run_with_a_card_that_is_not_known_or_with_occupancy_off_is_a_finding(
    run: Run, ground: Ground
) -> None:
    ground.rngd(0, "0000:03:00.0", FULL)
    unknown = run("node", "--once", "--dry-run")
    assert unknown.returncode == 1
    assert "0000-03-00.0: no keys (unknown)\nlabel airm.ai-computing.io/host-held: none" in unknown.stdout
    off = run("node", "--once", "--dry-run", AIRM_OCCUPANCY="0")
    assert off.returncode == 1
    assert off.stdout.startswith("occupancy is off")
    assert "profile" not in off.stdout


def test_a_dry_run_names_another_daemon_s_profiles_and_the_cards_that_it_has_none_of(
    lab: Lab, run: Run, seen: Seen, ground: Ground
) -> None:
    ground.node("acme0", FULL)
    ground.node("acme1", FUSE)
    theirs = profile(seen.node, "x", serial="acme0")
    theirs["spec"]["extra"]["id"] = "0"
    theirs["metadata"]["name"] = f"{seen.node}-theirs"
    lab.apply(theirs)
    ran = run("node", "--once", "--dry-run")
    assert ran.returncode == 1
    lines = ran.stdout.splitlines()
    assert lines[0] == f"profile {seen.node}-theirs"
    assert "no profile tells of card acme1: nothing is written of it there" in lines
    none = run("node", "--once", "--dry-run", TENURE_OCCUPANCY__PROFILES__GROUP="nowhere.example")
    assert "no profile tells of card acme0: nothing is written of it there" in none.stdout
