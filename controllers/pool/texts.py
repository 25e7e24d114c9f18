"""What Tenure says to a scheduler, one constant sentence per cause.

The scheduler writes a rejection into the pod's condition, and a text that changes wakes the pod again and again
(verified row 30): seconds, places and names belong into `tenure explain`.
"""

from enum import StrEnum


class Text(StrEnum):
    """The sentences. Users read them in `kubectl describe pod`."""

    NO_PROMISE = "no remote GPU is promised to this pod now; `tenure explain` says what it waits for"
    NOT_INJECTED = (
        "this pod came past Tenure's webhook and has no LUPINE_SERVER variable; delete it and create it again"
    )
    SERVES_CARDS = "this node serves its cards to others"
    POD_GONE = "the pod is gone"
    PLACED_ELSEWHERE = "the pod was placed on another node"
    CHANGED = "the pod changed while it was being bound"
    API_SERVER = "the API server did not answer in time; the pod will be tried again"
