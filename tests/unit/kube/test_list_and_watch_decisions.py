import random

import pytest

from service.kube import errors
from service.kube.backoff import Backoff
from service.kube.listwatch import ListReason, ListRequest, ListWatch, WatchRequest
from service.objects import Pod
from tests.unit.kube.objects import pod

GONE = errors.Gone(410)
TOO_LARGE = errors.VersionTooLarge(504)
CUT = errors.Unreachable("cut")


class Hand:
    """A clock that somebody moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Hand:
    return Hand()


@pytest.fixture
def core(clock: Hand) -> ListWatch[Pod]:
    rng = random.Random(1)
    return ListWatch(clock=clock, rng=rng, backoff=Backoff(clock, rng, jitter=0.0), page_size=2)


def listed(core: ListWatch[Pod], version: str = "10") -> None:
    core.next()
    assert core.page(version, None) is not None


def list_params(core: ListWatch[Pod]) -> dict[str, str]:
    request = core.next()
    assert isinstance(request, ListRequest)
    return dict(request.params)


def watch_params(core: ListWatch[Pod]) -> dict[str, str]:
    request = core.next()
    assert isinstance(request, WatchRequest)
    return dict(request.params)


def test_the_first_list_asks_for_the_newest_state(core: ListWatch[Pod]) -> None:
    assert list_params(core) == {"limit": "2"}
    assert core.reason is ListReason.START


def test_pages_are_followed_and_the_version_is_the_first_page_s(core: ListWatch[Pod]) -> None:
    core.stage(pod("x"))
    assert core.page("10", "token") is None
    assert list_params(core) == {"limit": "2", "continue": "token"}
    core.stage(pod("y"))
    assert core.page("11", None) == {"a/x": pod("x"), "a/y": pod("y")}
    assert watch_params(core)["resourceVersion"] == "10"


def test_selectors_go_with_lists_pages_and_watches(clock: Hand) -> None:
    rng = random.Random(1)
    core = ListWatch[Pod](
        clock=clock,
        rng=rng,
        backoff=Backoff(clock, rng),
        page_size=2,
        selectors={"labelSelector": "a=b"},
    )
    assert list_params(core)["labelSelector"] == "a=b"
    core.page("10", "token")
    assert list_params(core)["labelSelector"] == "a=b"
    core.page("10", None)
    assert watch_params(core)["labelSelector"] == "a=b"


def test_watches_ask_for_bookmarks_and_spread_their_ends(core: ListWatch[Pod]) -> None:
    listed(core)
    assert watch_params(core)["allowWatchBookmarks"] == "true"
    seconds = {int(watch_params(core)["timeoutSeconds"]) for _ in range(200)}
    assert min(seconds) >= 300
    assert max(seconds) <= 600
    assert len(seconds) > 50


def test_every_event_moves_the_version_and_a_cut_keeps_it(core: ListWatch[Pod]) -> None:
    listed(core)
    core.event("12")
    assert core.failed(CUT).pause == 0.8
    assert watch_params(core)["resourceVersion"] == "12"


@pytest.mark.parametrize("error", [CUT, errors.DeadlineExceeded(""), errors.Unauthorized(401)])
def test_what_says_nothing_about_the_version_never_leads_to_a_list(
    core: ListWatch[Pod], clock: Hand, error: errors.KubeError
) -> None:
    listed(core)
    for _ in range(100):
        clock.now += core.failed(error).pause
    assert clock.now > 700
    assert isinstance(core.next(), WatchRequest)


def test_pauses_grow_to_the_cap_and_start_again_after_health(core: ListWatch[Pod], clock: Hand) -> None:
    listed(core)
    pauses = []
    for _ in range(8):
        pauses.append(core.failed(CUT).pause)
        clock.now += pauses[-1]
    assert pauses == [0.8, 1.6, 3.2, 6.4, 8.0, 8.0, 8.0, 8.0]
    clock.now += 121.0
    assert core.failed(CUT).pause == 0.8


def test_too_many_requests_waits_as_long_as_told_and_never_lists(core: ListWatch[Pod]) -> None:
    listed(core)
    assert core.failed(errors.TooManyRequests(429, retry_after=17.0)).pause == 17.0
    assert core.failed(errors.TooManyRequests(429)).pause == 1.6
    assert core.failed(errors.TooManyRequests(429, retry_after=0.0)).pause == 3.2
    assert isinstance(core.next(), WatchRequest)


def test_an_expired_version_is_listed_at_once_from_that_version(core: ListWatch[Pod]) -> None:
    listed(core)
    core.event("12")
    assert core.failed(GONE).pause == 0.0
    assert list_params(core) == {
        "limit": "2",
        "resourceVersion": "12",
        "resourceVersionMatch": "NotOlderThan",
    }
    assert core.reason is ListReason.EXPIRED


def test_a_list_that_expires_itself_asks_for_the_newest_state(core: ListWatch[Pod]) -> None:
    listed(core)
    core.event("12")
    core.failed(GONE)
    assert core.failed(GONE).pause == 0.0
    assert list_params(core) == {"limit": "2"}
    assert core.failed(GONE).pause == 0.8


def test_lists_and_expiries_in_turn_without_an_event_do_not_spin(core: ListWatch[Pod]) -> None:
    listed(core)
    core.event("12")
    pauses = []
    for version in ("20", "30", "40"):
        pauses.append(core.failed(GONE).pause)
        listed(core, version)
    assert pauses == [0.0, 0.8, 1.6]


def test_a_version_from_the_future_asks_for_the_newest_state(core: ListWatch[Pod]) -> None:
    listed(core)
    core.event("12")
    assert core.failed(TOO_LARGE).pause == 0.0
    assert list_params(core) == {"limit": "2"}
    assert core.reason is ListReason.VERSION_TOO_LARGE


def test_an_expired_token_lists_again_once_without_pages(core: ListWatch[Pod]) -> None:
    core.stage(pod("old"))
    core.page("10", "token")
    assert core.failed(GONE).pause == 0.0
    assert list_params(core) == {}
    core.stage(pod("new"))
    assert core.page("20", None) == {"a/new": pod("new")}
    core.event("21")
    core.failed(GONE)
    assert list_params(core)["limit"] == "2"


def test_a_page_that_fails_is_asked_for_again(core: ListWatch[Pod]) -> None:
    core.stage(pod("x"))
    core.page("10", "token")
    assert core.failed(CUT).pause == 0.8
    assert list_params(core) == {"limit": "2", "continue": "token"}
    assert core.page("10", None) == {"a/x": pod("x")}


@pytest.mark.parametrize("error", [errors.Unavailable(500), errors.Undecodable(""), errors.ApiError(400)])
def test_a_server_that_keeps_breaking_watches_off_is_listed_after_a_minute(
    core: ListWatch[Pod], clock: Hand, error: errors.KubeError
) -> None:
    listed(core)
    began = clock.now
    while isinstance(core.next(), WatchRequest):
        clock.now += core.failed(error).pause
    assert 60.0 < clock.now - began < 120.0
    assert core.reason is ListReason.NO_PROGRESS


def test_an_event_between_the_failures_makes_them_start_again(core: ListWatch[Pod], clock: Hand) -> None:
    listed(core)
    for turn in range(20):
        core.event(str(turn))
        core.failed(errors.Unavailable(500))
        clock.now += 30.0
    assert isinstance(core.next(), WatchRequest)


@pytest.mark.parametrize("error", [errors.Forbidden(403), errors.NotFound(404)])
def test_a_kind_that_is_absent_or_forbidden_waits_long_and_is_listed_anew(
    core: ListWatch[Pod], error: errors.KubeError
) -> None:
    listed(core)
    recovery = core.failed(error)
    assert (recovery.pause, recovery.blocked) == (8.0, True)
    assert list_params(core) == {"limit": "2"}
    assert core.failed(error).pause == 8.0


def test_a_watch_that_ends_in_time_goes_on_at_once(core: ListWatch[Pod]) -> None:
    listed(core)
    assert core.ended(seconds=400.0, events=0).pause == 0.0
    assert core.ended(seconds=0.1, events=1).pause == 0.0


def test_a_watch_that_ends_at_once_without_an_event_is_an_error(core: ListWatch[Pod]) -> None:
    listed(core)
    recoveries = [core.ended(seconds=0.1, events=0) for _ in range(3)]
    assert [found.pause for found in recoveries] == [0.8, 1.6, 3.2]
    assert all(found.short for found in recoveries)
    assert isinstance(core.next(), WatchRequest)
