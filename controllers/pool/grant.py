"""Cards in a pod's hands: who of its containers gets which, and how that is written on the pod.

The text form is HAMi's (HAMi, pkg/device: EncodePodSingleDevice): `<node>/<id>,<keyword>,<MiB>,<cores>:` per card,
`;` after each container, init containers first, an empty slot for a container without cards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from controllers.pool.demand import Demand, Kind, Need
from controllers.pool.servers import Card
from service import names


class GrantError(ValueError):
    """An allocation that cannot be read, or cards that do not serve a demand."""


@dataclass(frozen=True, slots=True)
class Held:
    """One card as an allocation annotation names it."""

    server: str
    card: str
    memory_mib: int
    cores: int


def divide(demand: Demand, cards: Sequence[Card]) -> tuple[tuple[Card, ...], ...]:
    """The cards of each container, in the order of `demand.needs`. Raises GrantError when they do not suffice.

    Everyone takes the smallest card that is large enough. Sidecars keep theirs; what an init container took is
    there again for the next one. Taking the smallest leaves the most for later, so if any division works, this does.
    """
    left = sorted(cards, key=lambda card: (card.memory_mib, card.index, card.id))
    shares: list[tuple[Card, ...]] = []
    for need in demand.needs:
        share = _take(need, left)
        if need.kind is not Kind.INIT:
            left = [card for card in left if card not in share]
        shares.append(share)
    return tuple(shares)


def _take(need: Need, left: Sequence[Card]) -> tuple[Card, ...]:
    fitting = [card for card in left if card.memory_mib >= need.memory_mib]
    if len(fitting) < need.count:
        raise GrantError(f'container "{need.container}" cannot be served by these cards')
    return tuple(fitting[: need.count])


def encode(server: str, shares: Sequence[Sequence[Card]]) -> str:
    """The value of `hami.io/remote-gpu-devices-allocated`."""
    return "".join(
        "".join(f"{server}/{c.id},{names.ALLOCATION_KEYWORD},{c.memory_mib},{c.cores}:" for c in share) + ";"
        for share in shares
    )


def decode(text: str) -> tuple[tuple[Held, ...], ...]:
    """Read an allocation back, container by container; empty slots stay. Raises GrantError."""
    containers = text.split(";")
    if containers[-1] == "":
        containers.pop()
    return tuple(
        tuple(_held(piece) for piece in slot.split(":") if "," in piece and not piece.startswith(","))
        for slot in containers
    )


def _held(piece: str) -> Held:
    fields = piece.split(",")
    server, slash, card = fields[0].partition("/")
    if len(fields) < 4 or not (server and slash and card):  # noqa: PLR2004 - id, keyword, MiB, cores
        raise GrantError(f'"{piece[:80]}" is not a card of a server')
    try:
        return Held(server, card, int(fields[2]), int(fields[3]))
    except ValueError:
        raise GrantError(f'"{piece[:80]}" has text where a number belongs') from None


def endpoint(shares: Sequence[Sequence[Card]]) -> str:
    """The value of `hami.io/lupine-endpoint`: each endpoint once, in the order of the cards."""
    return ",".join(dict.fromkeys(card.endpoint for share in shares for card in share))


def annotations(server: str, demand: Demand, cards: Sequence[Card]) -> dict[str, str]:
    """Everything that the Binding writes on the pod. Raises GrantError when the cards do not serve the demand."""
    shares = divide(demand, cards)
    written = {names.DEVICES_ALLOCATED: encode(server, shares), names.LUPINE_ENDPOINT: endpoint(shares)}
    for need, share in zip(demand.needs, shares, strict=True):
        if share:
            written[names.ALLOCATION_PREFIX + need.container] = ",".join(card.id for card in share)
    return written
