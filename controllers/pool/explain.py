"""Why a pod waits, or where it is. One source for the command, the JSON API and the status page; pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from controllers.pool import placement
from controllers.pool.book import Book, Promise
from controllers.pool.demand import Demand
from controllers.pool.doubts import doubt
from controllers.pool.placement import KeptCard, Offer, Waiting
from controllers.pool.pods import Pods, PodView
from controllers.pool.servers import Allocation, Card, Phase, Reason, RemoteServer
from service import api
from service.objects import parse_time

_NODE_NOT_READY = {Reason.NODE_NOT_READY, Reason.NODE_DELETING}
_PHASE_STATE: Mapping[str, api.CardState] = {
    Phase.RESERVED: api.CardState.RESERVED,
    Phase.PASSING: api.CardState.RESERVED,
    Phase.BOUND: api.CardState.BOUND,
    Phase.DRAINING: api.CardState.DRAINING,
}
# Names that stand for a group of waiting pods: who is next, not who is there.
_FIRST = 3


class Explainer:
    """Answers from one replica's memory. `queue` has the waiting pods, `kept` tells for whom a free card is kept."""

    def __init__(
        self, book: Book, pods: Pods, *, queue: Iterable[Waiting], kept: Mapping[KeptCard, str], now: datetime
    ) -> None:
        self._book = book
        self._pods = pods
        self._kept = kept
        self._now = now
        ordered = sorted(queue, key=lambda item: item.place)
        self._places = {item.uid: number for number, item in enumerate(ordered, start=1)}

    def servers(self) -> api.Servers:
        """The pool, by server name."""
        return api.Servers(tuple(_server(s) for s in sorted(self._book, key=lambda s: s.name)))

    def pods(self) -> api.Pods:
        """Every pod that asked for cards, the queue first."""
        last = len(self._places) + 1
        seen = sorted(self._pods, key=lambda p: (self._places.get(p.uid, last), p.key))
        return api.Pods(tuple(self._row(pod) for pod in seen))

    def backlog(self) -> api.Backlog:
        """How many pods `waiting` is about."""
        asking = self._asking()
        return api.Backlog(len(asking), min(pod.since for pod in asking).isoformat() if asking else "")

    def waiting(self) -> Iterator[api.Waiting]:
        """Pods without a node in the queue's order, those together that get the same answer.

        One group at a time, so that a caller can pause: what the servers say is computed when it is asked for.
        """
        last = len(self._places) + 1
        groups: dict[tuple[str, tuple[int, ...]], list[PodView]] = {}
        for pod in sorted(
            self._asking(), key=lambda pod: (self._places.get(pod.uid, last), pod.since, pod.uid)
        ):
            groups.setdefault(self._group_of(pod), []).append(pod)
        for (sentence, _), pods in groups.items():
            yield self._together(sentence, pods)

    def explain(self, namespace: str, name: str) -> api.Explanation:
        """One pod's answer; the newest of several that had this name."""
        key = f"{namespace}/{name}"
        named = [pod for pod in self._pods if pod.key == key]
        if not named:
            sentence = "no such pod asks for remote cards; is the name right, and did it ask at creation?"
            return api.Explanation(pod=key, state=api.PodState.UNKNOWN, sentence=sentence)
        return self._explain(max(named, key=lambda pod: pod.since))

    def _asking(self) -> list[PodView]:
        return [pod for pod in self._pods.unplaced() if pod.demand and not pod.deleting]

    def _group_of(self, pod: PodView) -> tuple[str, tuple[int, ...]]:
        """The sentence, without what differs from pod to pod, and what the servers are asked for."""
        promise = self._book.promise(pod.uid)
        if promise:
            return f"{_cards(len(promise.allocations))} promised; {_next_step(pod)}", ()
        return self._sentence(pod, None), pod.demand.slots if pod.demand and pod.may_be_served else ()

    def _together(self, sentence: str, pods: list[PodView]) -> api.Waiting:
        first = pods[0]
        asks = first.may_be_served and self._book.promise(first.uid) is None
        answers = Counter(chance.sentence for chance in (self._chances(first) if asks else ()))
        return api.Waiting(
            sentence=sentence,
            pods=len(pods),
            since=min(pod.since for pod in pods).isoformat(),
            first=tuple(pod.key for pod in pods[:_FIRST]),
            servers=tuple(api.Alike(count, answer) for answer, count in answers.most_common()),
        )

    def _row(self, pod: PodView) -> api.Pod:
        promise = self._book.promise(pod.uid)
        return api.Pod(
            namespace=pod.namespace,
            name=pod.name,
            state=_state(pod, promise),
            since=pod.since.isoformat(),
            place=self._places.get(pod.uid),
            server=promise.server.name if promise else None,
            cards=tuple(card.id for card in promise.cards) if promise else (),
        )

    def _explain(self, pod: PodView) -> api.Explanation:
        promise = self._book.promise(pod.uid)
        given = tuple(_given(promise.server, card) for card in promise.cards) if promise else ()
        waits = promise is None and pod.demand is not None and not (pod.node or pod.ended)
        return api.Explanation(
            pod=pod.key,
            state=_state(pod, promise),
            sentence=self._sentence(pod, promise),
            place=self._places.get(pod.uid),
            gates=pod.other_gates,
            servers=self._chances(pod) if waits else (),
            cards=given,
        )

    def _sentence(self, pod: PodView, promise: Promise | None) -> str:
        if promise and pod.node:
            count = _cards(len(promise.cards))
            return f"runs on node {pod.node} with {count} of server {promise.server.name}"
        if promise:
            return _promised(pod, promise.allocations, self._now)
        if reason := doubt(pod, self._book):
            return f"its allocation annotation is not believed: {reason}"
        if pod.ended or pod.node or pod.demand is None:
            return "has ended" if pod.ended else "holds no card of the pool"
        if not pod.injected:
            return "came past the webhook and has no LUPINE_SERVER variable; delete it and create it again"
        if pod.other_gates:
            return f"held by other gates first: {', '.join(pod.other_gates)}"
        if not self._book.names:
            return "there is no server with remote cards"
        return f"waits for {_asked(pod.demand.slots)} on one server"

    def _chances(self, pod: PodView) -> tuple[api.Chance, ...]:
        if pod.demand is None:
            return ()
        offers = sorted(self._book.offers(), key=lambda offer: offer.server)
        return tuple(
            api.Chance(offer.server, len(offer.free), self._why(pod.demand, offer, pod.uid))
            for offer in offers
        )

    def _why(self, asked: Demand, offer: Offer, uid: str) -> str:
        """One server's answer to one demand."""
        wanted = len(asked.slots)
        for_it = [card for card in offer.free if self._kept.get((offer.server, card.id), uid) == uid]
        if placement.fit(asked.slots, for_it) is not None:
            return "could serve it as soon as those before it are served"
        if placement.fit(asked.slots, offer.free) is not None:
            return "its free cards are kept for a pod that has waited too long for more of them"
        if placement.fit(asked.slots, offer.offered) is not None:
            return self._busy(wanted, offer)
        least = min(asked.slots)
        large = sum(card.memory_mib >= least for card in offer.offered)
        if large < wanted <= len(offer.offered):
            return f"{large} of {len(offer.offered)} cards have the memory ({least} MiB)"
        return self._small(wanted, offer)

    def _busy(self, wanted: int, offer: Offer) -> str:
        server = self._book.get(offer.server)
        draining = [a for a in server.status.allocations if a.phase == "Draining"] if server else []
        sentence = f"{len(offer.free)} of {len(offer.offered)} cards are free, {wanted} are needed"
        if not draining:
            return sentence
        seconds = max(_seconds(item.since, self._now) for item in draining)
        return f"{sentence}; {_cards(len(draining))} draining for {seconds} s"

    def _small(self, wanted: int, offer: Offer) -> str:
        """Too few cards on offer, with the reasons of those that are not."""
        sentence = f"offers {_cards(len(offer.offered))}, {wanted} are needed"
        server = self._book.get(offer.server)
        reasons = sorted(
            {r for c in (server.status.cards if server else ()) if not c.offered for r in c.reasons}
        )
        return f"{sentence} ({', '.join(reasons)})" if reasons else sentence


def _server(server: RemoteServer) -> api.Server:
    held = {item.card: item for item in server.status.allocations}
    ready = not any(reason in _NODE_NOT_READY for card in server.status.cards for reason in card.reasons)
    cards = tuple(_card(card, held.get(card.id)) for card in server.status.cards)
    return api.Server(name=server.name, endpoint=server.status.endpoint, ready=ready, cards=cards)


def _card(card: Card, held: Allocation | None) -> api.Card:
    free = api.CardState.FREE if card.offered else api.CardState.UNKNOWN
    return api.Card(
        id=card.id,
        index=card.index,
        type=card.type,
        memory_mib=card.memory_mib,
        state=_PHASE_STATE.get(held.phase, api.CardState.UNKNOWN) if held else free,
        offered=card.offered,
        numa=card.numa,
        reasons=card.reasons,
        holder=api.Holder(held.namespace, held.name, held.phase, held.since) if held else None,
    )


def _given(server: RemoteServer, card: Card) -> api.GivenCard:
    return api.GivenCard(
        server=server.name, id=card.id, index=card.index, type=card.type, memory_mib=card.memory_mib
    )


def _state(pod: PodView, promise: Promise | None) -> api.PodState:
    if promise:
        return api.PodState.PLACED if pod.node else api.PodState.PROMISED
    if pod.node or pod.ended or pod.demand is None:
        return api.PodState.NOT_OURS
    return api.PodState.WAITING


def _cards(count: int) -> str:
    return "1 card" if count == 1 else f"{count} cards"


def _asked(slots: Sequence[int]) -> str:
    least = min(slots)
    return f"{_cards(len(slots))} of {least} MiB or more" if least else _cards(len(slots))


def _seconds(since: str, now: datetime) -> int:
    return max(0, int((now - parse_time(since)).total_seconds()))


def _promised(pod: PodView, allocations: tuple[Allocation, ...], now: datetime) -> str:
    age = _seconds(allocations[0].since, now)
    return f"{_cards(len(allocations))} promised {age} s ago; {_next_step(pod)}"


def _next_step(pod: PodView) -> str:
    if pod.gated:
        return "the gate is being removed"
    return "the scheduler has no node for it yet (CPU, memory, taints: kubectl describe pod)"
