"""Free cards beside pods that they would serve: for more than a moment, something keeps the two apart. Pure."""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Final

from controllers.pool import placement
from controllers.pool.placement import KeptCard, Offer, Waiting

# Different demands that are tried, the most frequent first: it is done at each scrape, and tenants choose demands.
MOST_DEMANDS: Final = 16


def servable(queue: Iterable[Waiting], offers: Iterable[Offer], kept: Collection[KeptCard]) -> int:
    """Waiting pods that free cards would serve, each for itself, leaving out cards that are kept for somebody."""
    free = [[card for card in offer.free if (offer.server, card.id) not in kept] for offer in offers]
    demands = Counter(pod.demand.slots for pod in queue)
    return sum(
        count
        for slots, count in demands.most_common(MOST_DEMANDS)
        if any(placement.fit(slots, cards) is not None for cards in free)
    )
