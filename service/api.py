"""What the JSON API of the ops listener answers, written once for who answers (the pool) and who asks (the commands).

    GET /api/v1/servers                    Servers
    GET /api/v1/pods                       Pods
    GET /api/v1/explain/{namespace}/{pod}  Explanation, also for a pod that the pool never saw

Times are RFC 3339 text, as the API server writes them. A reader skips fields it does not know, so a command may ask
an older or a newer server.
"""

from enum import StrEnum
from typing import Final

import msgspec

SERVERS: Final = "/api/v1/servers"
PODS: Final = "/api/v1/pods"
EXPLAIN: Final = "/api/v1/explain/{namespace}/{pod}"


class CardState(StrEnum):
    """Who has a card: nobody, a waiting pod, a placed pod, a pod that ended; or nobody can say."""

    FREE = "free"
    RESERVED = "reserved"
    BOUND = "bound"
    DRAINING = "draining"
    UNKNOWN = "unknown"


class PodState(StrEnum):
    """What the pool does for a pod."""

    WAITING = "waiting"
    PROMISED = "promised"
    PLACED = "placed"
    NOT_OURS = "not-ours"
    UNKNOWN = "unknown"


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """Base of all answers: camel case on the wire."""


class Holder(Answer, frozen=True):
    """The pod that has a card; `phase` is the allocation's: Reserved, Bound or Draining."""

    namespace: str
    name: str
    phase: str
    since: str


class Card(Answer, frozen=True):
    """One card. `reasons` say why it is not offered, or flag it although it is."""

    id: str
    index: int
    type: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    state: CardState
    offered: bool
    numa: int | None = None
    reasons: tuple[str, ...] = ()
    holder: Holder | None = None


class Server(Answer, frozen=True):
    """One lupine server; `endpoint` is `address:port`, `ready` that its node is."""

    name: str
    endpoint: str
    ready: bool
    cards: tuple[Card, ...]


class Servers(Answer, frozen=True):
    """The pool."""

    servers: tuple[Server, ...]


class Pod(Answer, frozen=True):
    """A pod that asked for cards. `place` counts from 1 in the queue; `server` and `cards` (ids) once it has them."""

    namespace: str
    name: str
    state: PodState
    since: str = ""
    place: int | None = None
    server: str | None = None
    cards: tuple[str, ...] = ()


class Pods(Answer, frozen=True):
    """Every pod that asked for cards, the queue first and in its order."""

    pods: tuple[Pod, ...]


class Chance(Answer, frozen=True):
    """What one server can do for the pod that was asked about: its free cards, and a sentence that says why not."""

    name: str
    free: int
    sentence: str


class GivenCard(Answer, frozen=True):
    """A card that the pod was promised or has."""

    server: str
    id: str
    index: int
    type: str
    memory_mib: int = msgspec.field(name="memoryMiB")


class Explanation(Answer, frozen=True):
    """Why a pod is where it is. `pod` is `namespace/name`, `gates` are the scheduling gates that are left."""

    pod: str
    state: PodState
    sentence: str
    place: int | None = None
    gates: tuple[str, ...] = ()
    servers: tuple[Chance, ...] = ()
    cards: tuple[GivenCard, ...] = ()


class Alike(Answer, frozen=True):
    """How many servers answer a demand with the same sentence."""

    servers: int
    sentence: str


class Waiting(Answer, frozen=True):
    """Pods without a node that get the same explanation: how many, since when the oldest waits, and who comes first.

    `first` are keys (`namespace/name`) in the order of the queue; `servers` answer for all of these pods.
    """

    sentence: str
    pods: int
    since: str
    first: tuple[str, ...]
    servers: tuple[Alike, ...] = ()


class Backlog(Answer, frozen=True):
    """How many pods asked for cards and have no node, and when the oldest was created (empty: there is none)."""

    pods: int
    since: str = ""


class Certificate(Answer, frozen=True):
    """One certificate in use: what it is for, its subject, and its end (RFC 3339)."""

    purpose: str
    name: str
    expires: str


class Certificates(Answer, frozen=True):
    """What the webhook's certificate stands on. `distrust`: why the API server would refuse it; None: it would not.

    `troubles` are sentences about what could not be kept in order and works on as it was.
    """

    certificates: tuple[Certificate, ...]
    distrust: str | None
    troubles: tuple[str, ...]


class Failure(Answer, frozen=True):
    """The body of any answer that is not 200."""

    error: str
