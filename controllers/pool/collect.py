"""Cards, allocations and the queue as metrics, made at scrape time from memory: no API call, once per card.

The `hami_remote_gpu_*` and `hami_vgpu_*` names and labels are HAMi's (HAMi, scheduler metrics of the remote
backend), so that existing dashboards go on working.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from controllers.pool.book import Book
from controllers.pool.doubts import doubt
from controllers.pool.idle import servable
from controllers.pool.placement import KeptCard, Waiting
from controllers.pool.pods import Pods
from controllers.pool.servers import Phase, Reason, RemoteServer
from service.objects import parse_time

_CARD = ("server", "endpoint", "device_uuid", "device_index", "device_type")
_MIB = 1024 * 1024


class PoolCollector(Collector):
    """`queue` gives the waiting pods, `kept` the free cards that are kept for one, `offered_locally` counts servers,
    `clock` tells the time of day.
    """

    def __init__(
        self,
        book: Book,
        pods: Pods,
        *,
        queue: Callable[[], list[Waiting]],
        offered_locally: Callable[[], int],
        kept: Callable[[], Mapping[KeptCard, str]],
        clock: Callable[[], datetime],
    ) -> None:
        self._book = book
        self._pods = pods
        self._queue = queue
        self._offered_locally = offered_locally
        self._kept = kept
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        """All families, in one pass over the book."""
        limit = GaugeMetricFamily(
            "hami_remote_gpu_memory_limit_bytes", "Memory of a remote card.", labels=_CARD
        )
        held = GaugeMetricFamily("hami_remote_gpu_allocated", "1 while a pod holds the card.", labels=_CARD)
        overview = GaugeMetricFamily(
            "hami_remote_gpu_overview",
            "Memory given away on the card, in bytes.",
            labels=(*_CARD, "device_cores", "device_memory_limit"),
        )
        memory = GaugeMetricFamily(
            "hami_vgpu_memory_allocated_bytes",
            "Memory of each card in a pod's hands.",
            labels=("container_index", "device_uuid", "namespace", "node", "pod"),
        )
        for server in self._book:
            self._server(server, limit, held, overview)
            self._allocations(server, memory)
        yield from (limit, held, overview, memory, *self._counts())

    def _server(
        self,
        server: RemoteServer,
        limit: GaugeMetricFamily,
        held: GaugeMetricFamily,
        overview: GaugeMetricFamily,
    ) -> None:
        taken = {item.card for item in server.status.allocations}
        for card in server.status.cards:
            labels = (server.name, card.endpoint, card.id, str(card.index), card.type)
            size = card.memory_mib * _MIB
            limit.add_metric(labels, size)
            held.add_metric(labels, card.id in taken)
            overview.add_metric((*labels, str(card.cores), str(size)), size if card.id in taken else 0)

    def _allocations(self, server: RemoteServer, memory: GaugeMetricFamily) -> None:
        """One entry per allocation: a card that containers use one after the other counts once, at its first."""
        sizes = {card.id: card.memory_mib * _MIB for card in server.status.cards}
        for item in server.status.allocations:
            pod = self._pods.get(item.pod_uid)
            if pod is not None and pod.node:
                index = str(pod.container_of(item.card))
                memory.add_metric(
                    (index, item.card, item.namespace, pod.node, item.name), sizes.get(item.card, 0)
                )

    def _counts(self) -> Iterable[Metric]:
        queue, offers, now = self._queue(), self._book.offers(), self._clock()
        oldest = max(((now - pod.since).total_seconds() for pod in queue), default=0.0)
        yield GaugeMetricFamily("tenure_pool_waiting_pods", "Pods that wait for cards.", value=len(queue))
        yield GaugeMetricFamily(
            "tenure_pool_oldest_wait_seconds", "Age of the oldest waiting pod.", value=oldest
        )
        yield GaugeMetricFamily(
            "tenure_pool_servable_pods",
            "Waiting pods that free cards would serve; true of the leader, for more than a moment only in trouble.",
            value=servable(queue, offers, self._kept()),
        )
        free = sum(len(offer.free) for offer in offers)
        yield GaugeMetricFamily("tenure_pool_free_cards", "Cards that could be given away now.", value=free)
        yield GaugeMetricFamily(
            "tenure_pool_servers_offered_locally",
            "Servers whose kubelet offers the same cards to local pods.",
            value=self._offered_locally(),
        )
        yield GaugeMetricFamily(
            "tenure_pool_unbelieved_allocations",
            "Placed pods whose allocation annotation names cards that they do not hold.",
            value=sum(1 for pod in self._pods if doubt(pod, self._book)),
        )
        yield from self._cards(now)

    def _cards(self, now: datetime) -> Iterable[Metric]:
        allocations = [item for server in self._book for item in server.status.allocations]
        held = Counter(item.phase for item in allocations)
        phases = GaugeMetricFamily("tenure_pool_cards", "Cards in somebody's hands.", labels=("phase",))
        for phase in Phase:
            phases.add_metric((phase.value.lower(),), held[phase])
        yield phases
        since = [
            parse_time(item.since) for item in allocations if item.phase == Phase.DRAINING and item.since
        ]
        yield GaugeMetricFamily(
            "tenure_pool_longest_draining_seconds",
            "How long the card that drains for longest has done so.",
            value=max(((now - moment).total_seconds() for moment in since), default=0.0),
        )
        told = Counter(
            reason for server in self._book for card in server.status.cards for reason in card.reasons
        )
        reasons = GaugeMetricFamily(
            "tenure_pool_card_reasons",
            "Cards that are not offered, by reason; OccupancyUnknown flags cards that are offered all the same.",
            labels=("reason",),
        )
        for reason in Reason:
            reasons.add_metric((reason.value,), told[reason])
        yield reasons
