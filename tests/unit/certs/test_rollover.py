"""What a CA Secret has to become, at any time and whatever somebody wrote into it."""

from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from certs import chain, pki, reading, rollover
from certs.pki import KeyPair
from certs.rollover import Authorities, Held, Plan
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW, YEAR

LIFETIME = 10 * YEAR
LEAF = 7 * DAY
SECRET = dict[str, bytes]


def planned(data: Mapping[str, bytes], now: datetime = NOW, *, published: bool = True) -> Plan:
    return rollover.plan(Held.read(data, now), now=now, lifetime=LIFETIME, published=lambda _: published)


def stored(authorities: Authorities, before: Mapping[str, bytes] | None = None) -> SECRET:
    """The Secret's data after a write."""
    merged = {**(before or {}), **authorities.data()}
    return {key: value for key, value in merged.items() if value is not None}


def fresh(now: datetime = NOW) -> SECRET:
    return stored(planned({}, now).to)


def with_next() -> tuple[SECRET, datetime]:
    """A Secret in the overlap, and when it began."""
    at = NOW + LIFETIME * 0.7
    return stored(planned(fresh(), at).to), at


def test_an_absent_or_empty_secret_gets_a_ca() -> None:
    plan = planned({})
    assert plan.reason == "there is no CA yet"
    assert planned(stored(plan.to)).reason is None


class TestASecretInOrderStays:
    def test_it_is_read_as_it_was_written(self) -> None:
        data, at = with_next()
        plan = planned(data, at)
        assert plan.reason is None
        assert stored(plan.to) == data

    def test_also_when_another_key_lies_beside_ours(self) -> None:
        assert planned({**fresh(), "notes.txt": b"hands off"}).reason is None

    def test_also_with_a_ca_that_somebody_else_made(self) -> None:
        theirs = made.ca()
        data = {"tls.crt": theirs.certificate_pem, "tls.key": theirs.key_pem}
        plan = planned(data)
        assert plan.reason is None
        assert plan.to.current.certificate == theirs.certificate
        assert plan.to.since is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"tls.crt": b"garbage", "tls.key": b"garbage"}, "the certificate is unreadable"),
        ({"tls.crt": b"\xff\x00", "tls.key": b""}, "the certificate is unreadable"),
        ({"tls.crt": made.ca().certificate_pem}, "there is no key"),
        ({"tls.crt": made.ca().certificate_pem, "tls.key": made.ca().key_pem}, "does not belong"),
        ({"tls.key": made.ca().key_pem}, "there is no certificate"),
    ],
)
def test_garbage_is_replaced_and_said(data: SECRET, reason: str) -> None:
    plan = planned(data)
    assert reason in str(plan.reason)
    assert planned(stored(plan.to, data)).reason is None


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (made.leaf(made.ca(), "a"), "the CA cannot be used: it is not a CA certificate"),
        (made.ca(begin=NOW - 2 * DAY, end=NOW - DAY), "the CA cannot be used: expired 1 d ago"),
        (made.ca(begin=NOW + timedelta(hours=3)), "the CA cannot be used: valid in 3 h"),
        (
            made.ca(key=rsa.generate_private_key(65537, 2048)),
            "the CA cannot be used: its key is no ECDSA key, and others keep the event loop too long",
        ),
    ],
)
def test_a_pair_that_cannot_sign_is_replaced(pair: KeyPair, reason: str) -> None:
    plan = planned({"tls.crt": pair.certificate_pem, "tls.key": pair.key_pem})
    assert plan.reason == reason
    assert reading.is_ours(plan.to.current.certificate)


class TestTheNextCa:
    def test_is_made_at_two_thirds_and_not_before(self) -> None:
        data = fresh()
        due = reading.renew_at(planned(data).to.current.certificate)
        assert planned(data, due - timedelta(seconds=1)).reason is None
        plan = planned(data, due)
        assert plan.reason == "two thirds of the CA's life are over"
        assert plan.to.current.certificate == planned(data).to.current.certificate
        assert plan.to.upcoming is not None

    def test_takes_over_in_the_middle_of_the_overlap_and_not_before(self) -> None:
        data, at = with_next()
        old = planned(data, at).to
        assert old.upcoming is not None
        begin = old.upcoming.certificate.not_valid_before_utc
        middle = begin + (old.current.certificate.not_valid_after_utc - begin) / 2
        assert planned(data, middle - timedelta(seconds=1)).reason is None
        plan = planned(data, middle)
        assert plan.reason == "the next CA's time has come"
        assert plan.to.current.certificate == old.upcoming.certificate
        assert (plan.to.upcoming, plan.to.since) == (None, middle)
        assert "next.crt" not in stored(plan.to, data)

    def test_waits_for_every_ca_bundle(self) -> None:
        data, at = with_next()
        assert planned(data, at + YEAR * 2.5, published=False).reason is None

    def test_takes_over_at_once_when_the_current_one_is_useless(self) -> None:
        data, at = with_next()
        plan = planned({**data, "tls.crt": b"garbage"}, at, published=False)
        assert plan.reason == "the certificate is unreadable; the next CA takes over"
        assert plan.to.current.certificate_pem == data["next.crt"]

    def test_is_taken_out_when_it_is_garbage(self) -> None:
        data = {**fresh(), "next.crt": b"garbage"}
        plan = planned(data)
        assert plan.reason == "the next CA is useless: the certificate is unreadable"
        assert planned(stored(plan.to, data)).reason is None

    def test_is_made_anew_when_it_is_garbage_in_the_overlap(self) -> None:
        data, at = with_next()
        plan = planned({**data, "next.key": b"garbage"}, at)
        assert plan.to.upcoming is not None
        assert plan.to.upcoming.certificate_pem != data["next.crt"]


@pytest.mark.parametrize("ahead", [8 * DAY, 11 * YEAR])
def test_a_clock_that_jumps_ahead_leaves_a_ca_that_can_sign(ahead: timedelta) -> None:
    data = fresh()
    plan = planned(data, NOW + ahead, published=False)
    assert reading.unfit_as_ca(plan.to.current.certificate, NOW + ahead) is None
    assert (plan.reason is None) == (ahead < LIFETIME)


def test_a_clock_that_jumps_back_leaves_a_ca_that_can_sign() -> None:
    plan = planned(fresh(NOW + YEAR), NOW)
    assert plan.reason == "the CA cannot be used: valid in 364 d 23 h"
    assert reading.unfit_as_ca(plan.to.current.certificate, NOW) is None


class TestARetiredCa:
    def test_stays_for_one_leaf_and_a_day_after_the_change(self) -> None:
        old = pki.make_ca(lifetime=LIFETIME, now=NOW - YEAR).certificate
        held = planned(fresh()).to
        for passed, retired in ((timedelta(), False), (LEAF + DAY, True)):
            now = NOW + passed
            assert held.retired(leaf_lifetime=LEAF, now=now)(old) == retired

    def test_is_one_of_ours_from_before(self) -> None:
        held = planned(fresh()).to
        retired = held.retired(leaf_lifetime=LEAF, now=NOW + YEAR)
        assert not retired(held.current.certificate)
        assert not retired(made.ca(begin=NOW - YEAR).certificate)
        assert not retired(pki.make_ca(lifetime=LIFETIME, now=NOW + DAY).certificate)

    @pytest.mark.parametrize("since", [b"", b"yesterday", b"2026-01-01T00:00:00", b"\xff"])
    def test_stays_when_nobody_knows_since_when(self, since: bytes) -> None:
        held = planned({**fresh(), "since": since}).to
        old = pki.make_ca(lifetime=LIFETIME, now=NOW - YEAR).certificate
        assert not held.retired(leaf_lifetime=LEAF, now=NOW + YEAR)(old)


class TestALeaf:
    def test_follows_when_two_thirds_are_over_or_the_ca_is_another_one(self) -> None:
        ca, other = made.ca(), made.ca()
        leaf = made.leaf(ca, "a", begin=NOW, end=NOW + 3 * DAY).certificate
        due = [rollover.leaf_due(leaf, ca.certificate, NOW + passed * DAY) for passed in (0, 1.9, 2)]
        assert due == [None, None, "two thirds of its life are over"]
        assert rollover.leaf_due(leaf, other.certificate, NOW) == "the CA is another one now"

    def test_follows_when_the_clock_left_its_time(self) -> None:
        ca = made.ca(begin=NOW - YEAR)
        leaf = made.leaf(ca, "a", begin=NOW, end=NOW + DAY).certificate
        assert rollover.leaf_due(leaf, ca.certificate, NOW + 8 * DAY) == "expired 7 d ago"
        assert rollover.leaf_due(leaf, ca.certificate, NOW - DAY) == "valid in 1 d"


@settings(deadline=None, max_examples=15)
@given(st.lists(st.floats(0.01, 0.2), min_size=20, max_size=60))
def test_whoever_looks_whenever_every_leaf_is_trusted_through_all_rollovers(steps: list[float]) -> None:
    """Looks at intervals of 1 % to 20 % of a CA's life; a replica keeps its leaf for as long as it holds."""
    now, data = NOW, SECRET()
    bundle = set(planned({}).to.trusted[:0])
    for step in steps:
        plan = rollover.plan(Held.read(data, now), now=now, lifetime=LIFETIME, published=bundle.__contains__)
        had = set(bundle)
        data = stored(plan.to, data)
        bundle |= set(plan.to.trusted)
        leaf = pki.make_leaf(plan.to.current, names=["a"], lifetime=LEAF, now=now)
        assert chain.distrust(leaf, roots=bundle, host="a", now=now) is None
        assert not had or plan.to.current.certificate in had, "a leaf of a CA that nobody knew before"
        now += LIFETIME * step
