"""The chart's other shapes on a real kubelet: `make prove ONLY=helm_variants`.

The node's network with an extender that demands client certificates; agents without privileges; regions by hostPath.
Each is installed, does its work, and goes.
"""

import json
from typing import Final

from service import names
from tests.lab.product import NAMESPACE
from tests.lab.product_images import PYTHON
from tests.prove.helm_world import RELEASE, World, is_ready, is_running, left_behind, pod
from tests.prove.proofs import Run, proof

# The node's 8080 and 9443 may be taken on the machine that plays the node.
PORTS: Final = (
    "settings.http.ops_port=28080,settings.http.webhook_port=29443,settings.http.extender_port=29444"
)
ONE: Final = "server.replicas=1"


@proof("helm_variants")
def the_chart_s_other_shapes_do_their_work(run: Run) -> None:
    with World.running("prove-helm-variants") as world:
        world.install("--set", f"server.hostNetwork=true,{ONE},{PORTS}")
        _gives_a_card_over_tls(run, world)
        _goes(run, world)
        world.install("--set", f"regions.backend=off,{ONE}")
        _agent_sees_the_node(run, world, extra={19: "SYS_PTRACE", 2: "DAC_READ_SEARCH"})
        _goes(run, world)
        quick = "settings.regions.leftover_grace_s=2,settings.regions.sweep_s=1"
        world.install("--set", f"regions.backend=hostPath,{quick},{ONE}")
        _keeps_files_of_host_paths(run, world)
        _goes(run, world)


def _gives_a_card_over_tls(run: Run, world: World) -> None:
    for _ in run.trials(1):
        (server,) = world.pods("server")
        run.check(server["spec"]["hostNetwork"] is True, "the server is not on the node's network")
    for _ in run.trials(1):
        world.create(pod("card", "sleep 1d", limits={names.REMOTE_GPU: "1"}))
        notes = world.until("card", is_running)["metadata"]["annotations"]
        run.check(names.LUPINE_ENDPOINT in notes, f"annotations: {notes}")
    world.delete("card")


def _agent_sees_the_node(run: Run, world: World, *, extra: dict[int, str]) -> None:
    """Only these capabilities, and the occupancy of the node is known all the same."""
    for _ in run.trials(1):
        (agent,) = world.pods("node")
        run.check(is_ready(agent), "the agent is not ready")
        status = _inside(world, agent["metadata"]["name"], "/proc/1/status")
        mine = _inside(world, agent["metadata"]["name"], "/proc/self/status")
        run.check("kthreadd" not in mine and "Name:" in status, "processes of the node are not seen")
        effective = int(mine.partition("CapEff:")[2].split()[0], 16)
        run.check(effective == sum(1 << bit for bit in extra), f"capabilities: {effective:x}")
    for _ in run.trials(1):
        name = world.pods("node")[0]["metadata"]["name"]
        log = world.lab.kubectl("logs", name, f"--namespace={NAMESPACE}")
        wrong = [line for line in log.splitlines() if json.loads(line)["level"] in {"warning", "error"}]
        run.check(not wrong, f"the agent says: {wrong[:3]}")


def _inside(world: World, name: str, path: str) -> str:
    """A file as the agent reads it: its image has no shell, only Python."""
    script = f"print(open({path!r}).read())"
    return world.lab.kubectl(
        "exec", name, f"--namespace={NAMESPACE}", "--", PYTHON.resolve().name, "-c", script
    )


def _keeps_files_of_host_paths(run: Run, world: World) -> None:
    """A root container writes a region file; when it is gone, the agent removes its folder."""
    for _ in run.trials(1):
        made = pod("region", "echo 1 >/tmp/.sm_node/probe; sleep 1d", annotations={names.REGIONS: ""})
        made["spec"]["containers"][0].pop("securityContext")  # Kubelet makes such folders for root only.
        world.create(made)
        uid = world.until("region", is_running)["metadata"]["uid"]
        run.check((world.regions / f"{uid}_main" / "sm_node" / "probe").exists(), f"{uid}_main has no probe")
    world.delete("region")
    for _ in run.trials(1):
        left = world.eventually_none(world.folders)
        run.check(not left, f"folders of pods that are gone: {left}")


def _goes(run: Run, world: World) -> None:
    for _ in run.trials(1):
        world.helm("uninstall", RELEASE, "--wait", "--timeout=300s")
        left = world.eventually_none(lambda: left_behind(world.lab))
        run.check(not left, f"left behind: {left}")
