"""The chart's whole life on a real kubelet: `make prove ONLY=helm_lifecycle`.

Install, use, test, refuse to go, upgrade under load, go: with the product's real image, two replicas that the API
server calls through their Service, and kube-schedulers beside them.
"""

from pathlib import Path
from typing import Final

from service import names
from tests.lab import LabError
from tests.lab.api import Call
from tests.lab.product import CHART
from tests.prove import helm_rights
from tests.prove.helm_world import (
    PODS,
    RELEASE,
    Creates,
    World,
    is_ready,
    is_running,
    left_behind,
    mounts_of,
    pod,
)
from tests.prove.proofs import Run, proof

FORGED: Final = {names.LUPINE_ENDPOINT: "203.0.113.9:14833", "example.com/mine": "kept"}
REGION: Final = "echo 1 >/tmp/.sm_node/probe && echo 1 >/tmp/.vmem_node/probe && echo written; sleep 1d"


@proof("helm_lifecycle")
def the_chart_installs_serves_upgrades_and_leaves(run: Run) -> None:
    with World.running("prove-helm") as world:
        _installs(run, world)
        _admits(run, world)
        _gives_a_card(run, world)
        _serves_regions(run, world)
        _tests_itself(run, world)
        _refuses_to_go(run, world)
        _upgrades(run, world)
        _keeps_to_its_rights(run, world)
        _goes(run, world)


def _installs(run: Run, world: World) -> None:
    notes = world.install()
    for _ in run.trials(1):
        run.check("kubectl delete mutatingwebhookconfiguration tenure" in notes, f"notes: {notes}")
    for component, count in (("server", 2), ("node", 1)):
        for _ in run.trials(1):
            ready = [found["metadata"]["name"] for found in world.pods(component) if is_ready(found)]
            run.check(len(ready) == count, f"{component}: {ready} are ready on the real node")
    for _ in run.trials(1):
        labels = world.node()["metadata"]["labels"]
        run.check(labels.get(names.REGIONS_READY_LABEL) == "ready", f"labels of the node: {labels}")


def _admits(run: Run, world: World) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/tenure"
    for _ in run.trials(1):
        (hook,) = world.lab.api.ok(Call("GET", path))["webhooks"]
        run.check("service" in hook["clientConfig"], f"called by: {hook['clientConfig'].keys()}")
    for _ in run.trials(1):
        kept = world.create(pod("forger", "true", annotations=FORGED))["metadata"]["annotations"]
        run.check(kept == {"example.com/mine": "kept"}, f"forged keys came through: {kept}")
    world.delete("forger")


def _gives_a_card(run: Run, world: World) -> None:
    limits = {names.REMOTE_GPU: "1", names.REMOTE_GPU_MEMORY: "100000"}
    for _ in run.trials(1):
        world.create(pod("card", f"echo {names.LUPINE_SERVER_ENV}=$LUPINE_SERVER; sleep 1d", limits=limits))
        found = world.until("card", is_running)
        notes = found["metadata"]["annotations"]
        run.check(
            found["spec"]["nodeName"] == world.lab.node_name
            and "gpu-1/" in notes.get(names.DEVICES_ALLOCATED, ""),
            f"placed on {found['spec']['nodeName']} with {notes}",
        )
        said = f"{names.LUPINE_SERVER_ENV}={notes.get(names.LUPINE_ENDPOINT)}"
        run.check(said in world.log("card"), f"the container printed {world.log('card')!r}, not {said}")


def _serves_regions(run: Run, world: World) -> None:
    for _ in run.trials(1):
        world.create(pod("region", REGION, annotations={names.REGIONS: ""}))
        uid = world.until("region", is_running)["metadata"]["uid"]
        written = list(world.regions.glob(f"{uid}_main/*/probe"))
        run.check(len(written) == 2, f"the node has {written}; the container said {world.log('region')!r}")


def _tests_itself(run: Run, world: World) -> None:
    for _ in run.trials(1):
        said = world.helm("test", RELEASE, "--timeout=180s", "--logs")
        run.check(said.count("ok: ") == 3, f"helm test said: {said}")


def _refuses_to_go(run: Run, world: World) -> None:
    """While a pod holds a card and another one has region volumes; nothing is deleted."""
    for _ in run.trials(1):
        try:
            said = world.helm("uninstall", RELEASE, "--timeout=120s")
            run.check(holds=False, otherwise=f"helm uninstall went through: {said}")
        except LabError as error:
            run.check("default/card" in str(error) and "default/region" in str(error), f"it said: {error}")
        run.check(len(world.pods("server")) == 2, "the servers are gone all the same")
    # Helm takes the release for half uninstalled now; the same revision once more makes it whole.
    world.helm("rollback", RELEASE, "1", "--wait", "--timeout=300s")


def _upgrades(run: Run, world: World) -> None:
    before = {found["metadata"]["uid"] for found in world.pods("server")}
    with Creates(world.lab, through=True, kept=True) as creates:
        change = ("--reuse-values", "--set", "settings.log.level=debug")
        world.helm("upgrade", RELEASE, str(CHART), *change, "--wait", "--timeout=300s")
    for _ in run.trials(1):
        after = {found["metadata"]["uid"] for found in world.pods("server") if is_ready(found)}
        run.check(len(after) >= 2 and not before & after, f"pods before {before}, after {after}")
    _count(run, creates, "during the upgrade")
    for _ in run.trials(1):
        running = [world.until(name, is_running)["metadata"]["name"] for name in ("card", "region")]
        run.check(running == ["card", "region"], "pods that had cards and regions run on")


def _keeps_to_its_rights(run: Run, world: World) -> None:
    """Every account was allowed what it asked for, and asked for what it is allowed."""
    used = list(helm_rights.uses(world.lab.audit_log))
    for _ in run.trials(1):
        refused = helm_rights.refused(used)
        run.check(not refused, f"refused: {sorted(refused)}")
    for _ in run.trials(1):
        unused = helm_rights.unused(used, world.helm("get", "manifest", RELEASE))
        run.check(not unused, f"rights that nobody used: {sorted(unused)}")


def _goes(run: Run, world: World) -> None:
    for name in ("card", "region"):
        world.delete(name)
    world.lab.api.ok(Call("DELETE", PODS, {"gracePeriodSeconds": 0}))
    for _ in run.trials(1):
        # A pod whose grace period is zero is gone from the API before kubelet takes its volumes away.
        left = world.eventually_none(lambda: [*world.folders(), *mounts_of(world.regions)])
        run.check(not left, f"regions left: {left}")
    with Creates(world.lab, through=False, kept=False) as creates:
        said = world.helm("uninstall", RELEASE, "--wait", "--timeout=300s")
    _count(run, creates, "during the uninstall")
    world.lab.api.ok(Call("DELETE", PODS, {"gracePeriodSeconds": 0}))
    for _ in run.trials(1):
        world.create(pod("after", "sleep 1d"))
        run.check(is_running(world.until("after", is_running)), "a pod does not run after the uninstall")
    for _ in run.trials(1):
        # Pods drain, and the cluster's garbage collection takes its time.
        left = world.eventually_none(lambda: left_behind(world.lab))
        run.check(not left, f"left behind: {left}; helm said: {said}")
    for _ in run.trials(1):
        kubelet = Path(world.lab.kubelet_folder)
        sockets = [*kubelet.glob("plugins/*tenure*/*"), *kubelet.glob("plugins_registry/*tenure*")]
        run.check(not sockets, f"sockets left: {sockets}")


def _count(run: Run, creates: Creates, when: str) -> None:
    """Each create is a trial of its own."""
    for number, _ in enumerate(run.trials(creates.tried)):
        run.check(number >= len(creates.failed), f"{when}: {creates.failed[number:][:1]}")
