"""Events at a pod, for whoever reads `kubectl describe pod`: each cause at most once per pod, in constant words.

What changes by the second, a place in the queue or which server lacks what, is for `tenure explain`.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import Enum
from typing import Literal

import structlog

from controllers.pool import placement
from controllers.pool.book import Book
from controllers.pool.doubts import doubt
from controllers.pool.placement import Waiting
from controllers.pool.pods import Pods
from controllers.pool.texts import Text
from service.kube.events import EventRecorder, ObjectRef

log = structlog.get_logger(__name__)

# A doubt must last: an object that was deleted is made again within seconds, and its pods are right all the while.
DOUBT_S = 30.0


class Cause(Enum):
    """Reason, type and sentence of an event."""

    reason: str
    kind: Literal["Normal", "Warning"]
    sentence: str

    def __init__(self, reason: str, kind: Literal["Normal", "Warning"], sentence: str) -> None:
        self.reason, self.kind, self.sentence = reason, kind, sentence

    BUSY = (
        "WaitingForCards",
        "Normal",
        "the cards that could serve this pod are in use; it is let in when they are free, in the order of the queue",
    )
    TOO_LARGE = (
        "NoServerLargeEnough",
        "Warning",
        "no server offers as many cards of this size at once; ask for fewer or smaller ones, or wait for a server",
    )
    PASSED_ON = (
        "PromisePassedOn",
        "Normal",
        "no node took this pod in time and others waited, so its cards passed on; it is in the queue again by its age",
    )
    NOT_INJECTED = ("CameBesideWebhook", "Warning", Text.NOT_INJECTED)
    NOT_BELIEVED = (
        "AllocationNotBelieved",
        "Warning",
        "its allocation annotation names cards that it does not hold; `tenure explain` says why",
    )


class Notices:
    """What was said about which pod; only the leader speaks."""

    def __init__(self, events: EventRecorder, book: Book, pods: Pods) -> None:
        self._events = events
        self._book = book
        self._pods = pods
        self._said: set[tuple[str, Cause]] = set()
        self._doubted: dict[str, datetime] = {}

    def say(self, uid: str, cause: Cause) -> None:
        """Tell a pod's people, unless they were told before or the pod is gone."""
        pod = self._pods.get(uid)
        if pod is None or (uid, cause) in self._said:
            return
        self._said.add((uid, cause))
        ref = ObjectRef("v1", "Pod", pod.name, namespace=pod.namespace, uid=uid)
        self._events.emit(ref, reason=cause.reason, message=cause.sentence, type_=cause.kind, once=True)

    def look(self, queue: Iterable[Waiting], now: datetime) -> bool:
        """Speak about whoever waits or claims what he has not. True when a doubt must be looked at again."""
        alive = {pod.uid for pod in self._pods}
        self._said = {item for item in self._said if item[0] in alive}
        for pod in self._pods.unplaced():
            if pod.demand and not pod.injected:
                self.say(pod.uid, Cause.NOT_INJECTED)
        self._about_waiting(queue)
        return self._about_doubts(now)

    def _about_waiting(self, queue: Iterable[Waiting]) -> None:
        offers = self._book.offers()
        possible: dict[tuple[int, ...], bool] = {}
        for pod in queue:
            if {(pod.uid, Cause.BUSY), (pod.uid, Cause.TOO_LARGE)} & self._said:
                continue
            slots = tuple(pod.demand.slots)
            if slots not in possible:
                possible[slots] = any(placement.fit(slots, offer.offered) is not None for offer in offers)
            self.say(pod.uid, Cause.BUSY if possible[slots] else Cause.TOO_LARGE)

    def _about_doubts(self, now: datetime) -> bool:
        doubted = {pod.uid: reason for pod in self._pods if (reason := doubt(pod, self._book))}
        self._doubted = {uid: self._doubted.get(uid, now) for uid in doubted}
        for uid, since in self._doubted.items():
            if now - since >= timedelta(seconds=DOUBT_S) and (uid, Cause.NOT_BELIEVED) not in self._said:
                log.warning("a pod's allocation is not believed", uid=uid, reason=doubted[uid])
                self.say(uid, Cause.NOT_BELIEVED)
        return any((uid, Cause.NOT_BELIEVED) not in self._said for uid in self._doubted)
