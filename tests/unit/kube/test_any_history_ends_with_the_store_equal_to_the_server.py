"""A model of the API server's versions, against the core that the reflector runs."""

import random
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from service.kube import errors
from service.kube.backoff import Backoff
from service.kube.listwatch import ListRequest, ListWatch, WatchRequest
from service.kube.store import Change, Store
from service.objects import Pod
from tests.unit.kube.objects import pod

NAMES = st.sampled_from("abcde")
FAILURES = [
    errors.Unreachable(""),
    errors.Unavailable(500),
    errors.VersionTooLarge(504),
    errors.TooManyRequests(429),
    errors.NotFound(404),
]


@dataclass
class Server:
    """Objects, a history that forgets, and pages that are consistent as long as history reaches back to them."""

    revision: int = 1
    objects: dict[str, Pod] = field(default_factory=dict)
    history: list[tuple[int, Pod, bool]] = field(default_factory=list)
    snapshots: dict[int, dict[str, Pod]] = field(default_factory=lambda: {1: {}})
    floor: int = 1
    uids: int = 0

    def put(self, name: str) -> None:
        self.revision += 1
        old = self.objects.get(name)
        if old is None:
            self.uids += 1
        uid = old.metadata.uid if old else f"u{self.uids}"
        self._record(pod(name, str(self.revision), uid=uid), deleted=False)

    def delete(self, name: str) -> None:
        if (old := self.objects.get(name)) is None:
            return
        self.revision += 1
        self._record(pod(name, str(self.revision), uid=old.metadata.uid), deleted=True)

    def _record(self, found: Pod, *, deleted: bool) -> None:
        if deleted:
            del self.objects[found.metadata.name]
        else:
            self.objects[found.metadata.name] = found
        self.history.append((self.revision, found, deleted))
        self.snapshots[self.revision] = dict(self.objects)

    def compact(self) -> None:
        self.floor = self.revision

    def page(self, request: ListRequest) -> tuple[list[Pod], str, str | None]:
        params = request.params
        at, start = self.revision, 0
        if "continue" in params:
            at, start = map(int, params["continue"].split("/"))
            if at < self.floor:
                raise errors.Gone(410)
        everything = [self.snapshots[at][name] for name in sorted(self.snapshots[at])]
        end = start + int(params.get("limit", len(everything) + 1))
        return everything[start:end], str(at), f"{at}/{end}" if end < len(everything) else None

    def since(self, version: int) -> list[tuple[int, Pod, bool]]:
        if version < self.floor:
            raise errors.Gone(410)
        return [event for event in self.history if event[0] > version]


class Histories(RuleBasedStateMachine):
    """Rules in any order; then all is quiet and the reflector catches up."""

    @initialize(seed=st.integers())
    def begin(self, seed: int) -> None:
        self.now = 0.0
        self.server = Server()
        self.store = Store[Pod]()
        self.mirror: dict[str, Pod] = {}
        self.store.subscribe(self.hear)
        rng = random.Random(seed)
        self.core = ListWatch[Pod](
            clock=lambda: self.now, rng=rng, backoff=Backoff(lambda: self.now, rng), page_size=2
        )
        self.watching: int | None = None

    def hear(self, change: Change[Pod]) -> None:
        assert self.mirror.get(change.key) == change.old
        self.mirror.pop(change.key, None)
        if change.new is not None:
            self.mirror[change.key] = change.new

    @rule(name=NAMES)
    def somebody_writes(self, name: str) -> None:
        self.server.put(name)

    @rule(name=NAMES)
    def somebody_deletes(self, name: str) -> None:
        self.server.delete(name)

    @rule()
    def history_is_forgotten(self) -> None:
        self.server.compact()

    @rule()
    def the_server_is_restored_from_an_older_copy(self) -> None:
        """As etcd wants it done: older objects, versions far ahead, nothing before them remembered."""
        older = max(self.server.floor, self.server.revision - 3)
        self.server.objects = dict(self.server.snapshots[older])
        self.server.revision += 1000
        self.server.floor = self.server.revision
        self.server.history.clear()
        self.server.snapshots = {self.server.revision: dict(self.server.objects)}
        self.watching = None

    @rule()
    def the_reflector_asks(self) -> None:
        self.step()

    @rule(error=st.sampled_from(FAILURES))
    def the_request_fails(self, error: errors.KubeError) -> None:
        self.watching = None
        self.now += self.core.failed(error).pause

    @precondition(lambda self: self.watching is not None)
    @rule(count=st.integers(1, 3))
    def some_events_arrive(self, count: int) -> None:
        self.receive(count)

    @precondition(lambda self: self.watching is not None)
    @rule()
    def a_bookmark_arrives(self) -> None:
        self.receive(len(self.server.history))
        if self.watching is not None:
            self.core.event(str(self.server.revision))
            self.watching = self.server.revision

    @precondition(lambda self: self.watching is not None)
    @rule(seconds=st.sampled_from([0.1, 400.0]))
    def the_watch_ends(self, seconds: float) -> None:
        self.watching = None
        self.now += self.core.ended(seconds=seconds, events=0).pause

    def step(self) -> None:
        if self.watching is not None:
            self.receive(len(self.server.history))
            return
        try:
            match self.core.next():
                case ListRequest() as request:
                    self.list_page(request)
                case WatchRequest() as request:
                    version = int(request.params["resourceVersion"])
                    self.server.since(version)
                    self.watching = version
        except errors.KubeError as error:
            self.now += self.core.failed(error).pause

    def list_page(self, request: ListRequest) -> None:
        objects, version, token = self.server.page(request)
        for found in objects:
            self.core.stage(found)
        complete = self.core.page(version, token)
        if complete is not None:
            self.store.replace(complete.values())

    def receive(self, count: int) -> None:
        assert self.watching is not None
        try:
            events = self.server.since(self.watching)[:count]
        except errors.Gone as error:
            self.watching = None
            self.now += self.core.failed(error).pause
            return
        for revision, found, deleted in events:
            self.store.apply(found, deleted=deleted)
            self.core.event(str(revision))
            self.watching = revision

    def teardown(self) -> None:
        for _ in range(20):
            self.step()
        expected = {f"a/{name}": found for name, found in self.server.objects.items()}
        assert {found.metadata.key: found for found in self.store.list()} == expected
        assert self.mirror == expected
        assert self.store.synced


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
