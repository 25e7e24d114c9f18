import random

import pytest

from service.kube.backoff import Backoff


class Hand:
    """A clock that somebody moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def without_jitter(clock: Hand) -> Backoff:
    return Backoff(clock, random.Random(1), jitter=0.0)


def test_pauses_double_up_to_the_cap() -> None:
    backoff = without_jitter(Hand())
    assert [backoff.next() for _ in range(8)] == [0.8, 1.6, 3.2, 6.4, 8.0, 8.0, 8.0, 8.0]


def test_two_minutes_of_health_after_the_pause_start_the_series_again() -> None:
    clock = Hand()
    backoff = without_jitter(clock)
    backoff.next()
    clock.now += backoff.next()
    clock.now += 119.0
    assert backoff.next() == 3.2
    clock.now += 3.2 + 120.5
    assert backoff.next() == 0.8


def test_a_long_pause_itself_is_no_health() -> None:
    clock = Hand()
    backoff = Backoff(clock, random.Random(1), start=100.0, cap=200.0, jitter=0.0, reset_after=120.0)
    for expected in (100.0, 200.0, 200.0):
        pause = backoff.next()
        assert pause == expected
        clock.now += pause


def test_jitter_spreads_over_up_to_twice_the_pause() -> None:
    backoff = Backoff(Hand(), random.Random(7), start=10.0, cap=10.0)
    pauses = [backoff.next() for _ in range(200)]
    assert 10.0 <= min(pauses) < 11.0
    assert 19.0 < max(pauses) < 20.0


def test_what_will_not_change_soon_waits_the_cap_at_once() -> None:
    backoff = without_jitter(Hand())
    assert backoff.longest() == pytest.approx(8.0)
    assert backoff.next() == pytest.approx(8.0)
