"""A pool of any size and the pods that wait before it, for the status page's tests and its benchmark."""

import time
from collections.abc import Iterable

import msgspec

from controllers.claims.report import Check, Code, Report, fail, worst
from controllers.occupancy.holdings import CardHoldings, Held, Holdings
from controllers.pool.book import Book
from controllers.pool.explain import Explainer
from controllers.pool.fresh import OwnWrites
from controllers.pool.pods import Pods, Resources, view
from controllers.pool.servers import Allocation, Phase, RemoteServer
from service.objects import Pod
from tests.unit.pool import build

CARDS_OF_A_SERVER = 8
PHASES = (Phase.BOUND, Phase.BOUND, Phase.BOUND, Phase.RESERVED, Phase.DRAINING)


class Crowd:
    """What one replica knows of these servers and pods."""

    def __init__(self, servers: Iterable[RemoteServer], pods: Iterable[Pod] = ()) -> None:
        self._pods = Pods(OwnWrites(time.monotonic))
        self._book = Book(self._pods.witnesses, OwnWrites(time.monotonic))
        for server in servers:
            self._book.learn(server)
        for pod in pods:
            if seen := view(pod, Resources()):
                self._pods.learn(seen)

    def explainer(self) -> Explainer:
        """As the pool makes one for each request."""
        queue = [
            pod.waiting()
            for pod in self._pods.unplaced()
            if pod.may_be_served and self._book.promise(pod.uid) is None
        ]
        return Explainer(self._book, self._pods, queue=queue, kept={}, now=build.NOW)


def servers(cards: int) -> list[RemoteServer]:
    """Full servers: five of eight cards are in somebody's hands, one is kept out, two are free."""
    return [_server(number) for number in range(-(-cards // CARDS_OF_A_SERVER))]


def _server(number: int) -> RemoteServer:
    own = [
        build.card(f"GPU-{number:04}-{index}", mib=81_920, index=index, offered=index != 5)
        for index in range(CARDS_OF_A_SERVER)
    ]
    held: list[Allocation] = [
        build.allocation(card.id, f"train-{number}-{index}", PHASES[index], build.ago(600 * index))
        for index, card in enumerate(own[: len(PHASES)])
    ]
    return build.server(f"gpu-{number:04}", of=own, held=held)


def pods(count: int) -> list[Pod]:
    """Waiting pods with eleven different demands; every tenth is held by another gate too."""
    return [_pod(number) for number in range(count)]


def _pod(number: int) -> Pod:
    asked = build.asks(remote_gpu=str(3 + number % 11), remote_gpu_memory="80000")
    gates = ["example.com/quota"] if number % 10 == 0 else []
    found = build.pod(f"waits-{number:05}", asked, gates=["tenure.dev/remote-gpu", *gates])
    meta = msgspec.structs.replace(found.metadata, creation_timestamp=build.ago(number).isoformat())
    return msgspec.structs.replace(found, metadata=meta)


def holdings(cards: int) -> Holdings:
    """Cards of nodes in every state, most of them with a process on them."""
    states = ("k8s", "k8s", "host", "free", "unknown")
    return Holdings(tuple(_holding(number, states[number % len(states)]) for number in range(cards)))


def _holding(number: int, state: str) -> CardHoldings:
    held = (Held(4000 + number, "python3", state, f"team-{number % 7}/train-{number}"),)
    free = state in {"free", "unknown"}
    return CardHoldings(
        f"node-{number // 8:04}", f"0000:{number:02x}:00.0", "furiosa", "rngd", state, () if free else held
    )


def reports(count: int) -> tuple[Report, ...]:
    """Claim templates; every third fails a check."""
    return tuple(_report(number) for number in range(count))


def _report(number: int) -> Report:
    findings = (
        fail(
            Code.ATTR_MISSING, "request npu", "no device has resource.kubernetes.io/numaNode, which it needs"
        ),
    )
    checks = (
        Check.of("classes", ()),
        Check.of("attributes", findings if number % 3 == 0 else ()),
    )
    return Report(f"team-{number}/npu-rdma", worst(check.verdict for check in checks), checks, 12 * number)
