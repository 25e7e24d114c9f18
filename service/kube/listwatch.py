"""List and watch without I/O: what to ask the API server next, and what each answer means.

    list ──▶ watch ──▶ watch ──▶ ...     each watch goes on from the last version seen
     ▲          │
     └──────────┘     only when history does not reach back to that version, or nothing moves any more

The specification is client-go's tools/cache, reflector.go. One difference: every list is paged, also one that goes
on from a version, because the size of a page bounds how long its decoding keeps the loop.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from service.kube.backoff import Backoff, Clock
from service.kube.errors import (
    DeadlineExceeded,
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    VersionTooLarge,
)
from service.objects import KubeObject

T = TypeVar("T", bound=KubeObject)

# The API server ends a watch after a random time in this range (seconds), so that not all come back at once.
WATCH_S = (300, 600)
# A watch that ends sooner than this (seconds), without an event, is an error in disguise (client-go: "very short").
SHORT_WATCH_S = 1.0
# After so many seconds of watches that the server breaks off, without an event between, only a list tells the truth.
NO_PROGRESS_S = 60.0


class ListReason(StrEnum):
    """Why a reflector lists."""

    START = "start"
    EXPIRED = "expired"
    """History no longer reaches back to our version."""
    VERSION_TOO_LARGE = "version_too_large"
    """The server is behind our version, as after a restore of etcd."""
    NO_PROGRESS = "no_progress"
    """Watches from our version kept failing."""
    ABSENT = "absent"
    """The kind or the right to see it was missing, so nothing of what we knew is sure."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Ask for a page; `first` when it begins a list, which has a `reason`."""

    params: Mapping[str, str]
    reason: ListReason
    first: bool


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Ask for events; the server ends the watch after `seconds`."""

    params: Mapping[str, str]
    seconds: int


@dataclass(frozen=True, slots=True)
class Recovery:
    """Wait `pause` seconds before the next request.

    `blocked`: the kind is absent or may not be read. `short`: the watch ended at once and brought nothing.
    """

    pause: float
    blocked: bool = False
    short: bool = False


@dataclass(slots=True)
class ListWatch(Generic[T]):
    """Where one reflector stands. `version` is opaque and only handed back; None asks for the newest state."""

    clock: Clock
    rng: random.Random
    backoff: Backoff
    page_size: int
    selectors: Mapping[str, str] = field(default_factory=dict)

    version: str | None = field(init=False, default=None)
    reason: ListReason | None = field(init=False, default=ListReason.START)
    """Why a list is due or under way; None while watching."""
    _staged: dict[str, T] = field(init=False, default_factory=dict)
    _staged_version: str | None = field(init=False, default=None)
    _continue: str | None = field(init=False, default=None)
    _unpaged: bool = field(init=False, default=False)
    _moved: bool = field(init=False, default=False)
    _stuck_since: float | None = field(init=False, default=None)

    def next(self) -> ListRequest | WatchRequest:
        """What to ask for now."""
        if self.reason is None:
            return self._watch()
        if self._continue is not None:
            return ListRequest(self._page({"continue": self._continue}), self.reason, first=False)
        if self.version is None:
            return ListRequest(self._page({}), self.reason, first=True)
        at_least = {"resourceVersion": self.version, "resourceVersionMatch": "NotOlderThan"}
        return ListRequest(self._page(at_least), self.reason, first=True)

    def _page(self, params: Mapping[str, str]) -> dict[str, str]:
        limit = {} if self._unpaged else {"limit": str(self.page_size)}
        return {**self.selectors, **limit, **params}

    def _watch(self) -> WatchRequest:
        seconds = self.rng.randint(*WATCH_S)
        params = {
            **self.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            "resourceVersion": self.version or "",
        }
        return WatchRequest(params, seconds)

    def stage(self, found: T) -> None:
        """Keep an object of the list that is under way."""
        self._staged[found.metadata.key] = found

    def page(self, version: str, token: str | None) -> Mapping[str, T] | None:
        """A page is through: its list's version and its continue token. Returns all objects after the last page."""
        if self._staged_version is None:
            self._staged_version = version  # of the first page: what later pages add is watched for
        if token:
            self._continue = token
            return None
        complete, newest = self._staged, self._staged_version
        self._begin_list(None, version=newest)
        return complete

    def event(self, version: str) -> None:
        """An event or a bookmark moves the cursor."""
        self.version = version
        self._moved = True
        self._stuck_since = None

    def ended(self, *, seconds: float, events: int) -> Recovery:
        """A watch ended without an error, or fell silent, after `seconds` and `events`."""
        short = seconds < SHORT_WATCH_S and not events
        return Recovery(self.backoff.next() if short else 0.0, short=short)

    def failed(self, error: KubeError) -> Recovery:
        """The request that `next` gave last failed."""
        match error:
            case NotFound() | Forbidden():
                self._begin_list(ListReason.ABSENT, version=None)
                return Recovery(self.backoff.longest(), blocked=True)
            case TooManyRequests():
                return Recovery(max(error.retry_after or 0.0, self.backoff.next()))
            case _:
                at_once = self._watch_failed(error) if self.reason is None else self._list_failed(error)
                return Recovery(0.0 if at_once else self.backoff.next())

    def _watch_failed(self, error: KubeError) -> bool:
        """Decide whether to list; True when that may happen at once."""
        match error:
            case Gone():
                self._begin_list(ListReason.EXPIRED, version=self.version)
            case VersionTooLarge():
                self._begin_list(ListReason.VERSION_TOO_LARGE, version=None)
            case Unreachable() | DeadlineExceeded() | Unauthorized():
                return False  # nothing is wrong with our version
            case _:
                self._stuck(self.clock())
                return False
        moved, self._moved = self._moved, False
        return moved  # a list that did not get us one event further must not be repeated at once

    def _stuck(self, now: float) -> None:
        if self._stuck_since is None:
            self._stuck_since = now
        elif now - self._stuck_since > NO_PROGRESS_S:
            self._begin_list(ListReason.NO_PROGRESS, version=self.version)

    def _list_failed(self, error: KubeError) -> bool:
        """Decide how to list again; True when that may happen at once. Other failures repeat the same page."""
        if not isinstance(error, Gone | VersionTooLarge):
            return False
        if self._continue is not None:  # the token expired, after about five minutes
            self._begin_list(self.reason, version=self.version)
            self._unpaged = True
            return True
        had_version = self.version is not None
        reason = ListReason.EXPIRED if isinstance(error, Gone) else ListReason.VERSION_TOO_LARGE
        self._begin_list(reason, version=None)
        return had_version

    def _begin_list(self, reason: ListReason | None, *, version: str | None) -> None:
        self.reason, self.version = reason, version
        self._staged, self._staged_version, self._continue = {}, None, None
        self._unpaged, self._stuck_since = False, None
