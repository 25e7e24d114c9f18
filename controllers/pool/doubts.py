"""Allocations that a placed pod claims and does not have (rule 29): they hold nothing, and are reported. Pure."""

from controllers.pool.book import Book
from controllers.pool.pods import PodView


def doubt(pod: PodView, book: Book) -> str:
    """Why the pool does not believe a placed pod's allocation annotation; "" when it does, or there is none.

    A server whose cards nobody has read yet, after its object was made anew, says nothing against its pods.
    """
    if pod.suspicion or pod.witness is None:
        return pod.suspicion
    name, witness = pod.witness
    server = book.get(name)
    if server is None:
        return "it names a server that is not in the pool"
    known = {card.id for card in server.status.cards}
    if known and not known.issuperset(witness.cards):
        return "it names a card that its server does not have"
    holders = {item.card: item.pod_uid for item in server.status.allocations}
    if any(holders.get(card, pod.uid) != pod.uid for card in witness.cards):
        return "it names a card that another pod holds"
    return ""
