"""More that goes wrong in a `scene`: a replica of another version that has a bug and is cut off from the API server,
and a card that does not become empty."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from service import names
from tests.cluster.occupancy import SERVERS, Json
from tests.cluster.scene import PODS, Scene
from tests.cluster.tcp_proxy import kubeconfig_through, proxied_in_a_thread
from tests.lab.api import Call
from tests.lab.layout import REPOSITORY
from tests.lab.ports import free_ports
from tests.lab.process import Program
from tests.lab.product import ACCOUNT
from tests.lab.simulated import SimulatedNode
from tests.unit.occupancy.ground import ZERO, Ground, Programs, lupine_client

CARD = "acme0"
SERVER = "gpu-2"
MEMORY_MIB = 200_000  # More than other servers' cards have: who asks for so much gets this one.


def a_served_card_has_a_client(scene: Scene, programs: Programs) -> int:
    """A server comes whose agent sees a client of lupine on its card; the client's process."""
    ground = Ground(scene.folder / "served")
    client = lupine_client(ground, programs, card=ground.node(CARD, ZERO))
    card = {"id": CARD, "devmem": MEMORY_MIB, "devcore": 100, "mode": "remote", "health": True}
    node = SimulatedNode(
        name=SERVER,
        address="198.19.2.3",
        labels={names.LUPINE_SERVER_LABEL: ""},
        annotations={names.NODE_REGISTER: json.dumps([card])},
    )
    scene.lab.simulate_nodes([node])
    (port,) = free_ports(1)
    more = {"regions__backend": "off", "occupancy__drain_interval_s": "1"}
    scene.start_agent("tenure-node-2", node=SERVER, port=port, ground=ground, **more)
    _until_server(scene, lambda found: _clients(found) == [1])
    return client


def a_bad_replica_comes(scene: Scene) -> None:
    """Its first two troubles begin with its start; then nothing reaches it any more, and a card is given away."""
    scene.quiet("TenureFault", "TenureVersionsDiffer", "TenureReplicasDisagree")
    with proxied_in_a_thread(scene.lab.server) as (proxy, url):
        program = _bad_program(
            scene, kubeconfig_through(scene.lab.kubeconfig_for(ACCOUNT), url, scene.folder)
        )
        scene.lab.components.run(program)
        scene.fires("TenureFault", "TenureVersionsDiffer")
        agree = 'tenure_pool_free_cards{job="tenure-2"} == on () tenure_pool_free_cards{job="tenure-0"}'
        scene.prometheus.until(lambda: bool(scene.prometheus.query(agree)), "it sees what the leader sees")
        proxy.stall()
        assert scene.create(scene.pod("leaves", cards=1, memory=MEMORY_MIB)) == 201
        scene.lab.wait_for(f"{PODS}/leaves", accept=lambda pod: bool(pod["spec"].get("nodeName")))
        scene.fires("TenureReplicasDisagree")
        scene.lab.components.kill(program.name)


def _bad_program(scene: Scene, kubeconfig: Path) -> Program:
    """The product with a bug (`faulty`), and beside it the metadata of a package of another version."""
    metadata = scene.folder / "older" / "tenure-0.0.1.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: tenure\nVersion: 0.0.1\n")
    program = scene.product.program(
        scene.replicas["tenure-2"], kube__kubeconfig=str(kubeconfig), webhook__configuration_name=""
    )
    path = f"{metadata.parents[1]}:{REPOSITORY}"
    # Without PYTHONSAFEPATH the metadata that a build leaves in the current folder would come first.
    env = {**program.env, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
    return replace(program, argv=[sys.executable, "-m", "tests.cluster.faulty", "serve"], env=env)


def the_client_stays(scene: Scene, programs: Programs, client: int) -> None:
    """The card's pod ends and its client does not. That this was long ago is written into the object: it is what the
    alert waits for, and the only thing here that did not happen."""
    scene.quiet("TenureCardsDrainTooLong")
    scene.lab.api.ok(Call("DELETE", f"{PODS}/leaves", {"gracePeriodSeconds": 0}))
    found = _until_server(scene, lambda found: _phases(found) == ["Draining"])
    allocations = [found["status"]["allocations"][0] | {"since": "2026-01-01T00:00:00Z"}]
    scene.patch(f"{SERVERS}/{SERVER}/status", {"status": {"allocations": allocations}})
    scene.fires("TenureCardsDrainTooLong")
    programs.end(client)
    _until_server(scene, lambda found: _phases(found) == [])
    scene.quiet("TenureCardsDrainTooLong")


def _until_server(scene: Scene, accept: Callable[[Json], bool]) -> Json:
    found: Json = scene.lab.wait_for(f"{SERVERS}/{SERVER}", accept=accept)
    return found


def _phases(server: Json) -> list[str]:
    return [allocation["phase"] for allocation in server["status"]["allocations"]]


def _clients(server: Json) -> list[int]:
    return [card["lupineClients"] for card in server.get("spec", {}).get("observed", ())]
