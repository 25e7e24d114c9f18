from service.kube.lease import Sight, Spec


class Hand:
    """A clock that somebody moves by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


LASTS_15 = Spec(holder_identity="other", lease_duration_seconds=15, renew_time="1970-01-01T00:00:00.000000Z")


def test_a_record_expires_only_by_our_own_clock_however_old_it_says_it_is() -> None:
    clock = Hand()
    sight = Sight(clock)
    assert not sight.expired("1", LASTS_15)
    clock.now += 15.0
    assert not sight.expired("1", LASTS_15)
    clock.now += 0.1
    assert sight.expired("1", LASTS_15)


def test_every_write_begins_the_time_anew() -> None:
    clock = Hand()
    sight = Sight(clock)
    for version in range(10):
        assert not sight.expired(str(version), LASTS_15)
        clock.now += 14.0


def test_a_record_without_a_duration_is_free_at_once() -> None:
    clock = Hand()
    sight = Sight(clock)
    assert not sight.expired("1", Spec(holder_identity="other"))
    clock.now += 0.1
    assert sight.expired("1", Spec(holder_identity="other"))
