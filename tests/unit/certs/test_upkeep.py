"""When a new certificate follows the one that is served, and what a failure of one part does to the others."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from certs.metrics import CertificateMetrics
from certs.pki import KeyPair, PkiError
from certs.serving import LiveContext
from certs.source import Offer, Retired
from certs.upkeep import Look, Upkeep
from service.api import Certificates
from service.kube.errors import Unreachable
from service.metrics import MetricSet
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW

CALM = Look(wrote=False, failed=False, pending=False)


class Scripted:
    """A source and an API server's trust, both as the test says."""

    def __init__(self) -> None:
        self.offered: Offer | Exception = PkiError("nothing yet")
        self.failure: Exception | None = None
        self.trusted: set[x509.Certificate] = set()
        self.settled: set[x509.Certificate] = set()
        self.outdated: str | None = None
        """What was read long ago; until it is read again."""
        self.asked: list[set[x509.Certificate]] = []
        self.now = NOW
        self.context = LiveContext()
        self.registry = CollectorRegistry()
        metrics = CertificateMetrics(MetricSet(self.registry))
        self.upkeep = Upkeep(self, self, [self.context], now=lambda: self.now, metrics=metrics)

    async def offer(self) -> Offer:
        if isinstance(self.offered, Exception):
            raise self.offered
        return self.offered

    async def agree(self, ours: Sequence[x509.Certificate], *, retired: Retired) -> bool:  # noqa: ARG002
        self.asked.append(set(ours))
        if self.failure:
            raise self.failure
        self.outdated = None
        wrote = not set(ours) <= self.trusted
        self.trusted |= set(ours)
        return wrote

    def distrust(self, pair: KeyPair, *, settled: bool = False) -> str | None:
        if self.outdated:
            return self.outdated
        among = self.settled if settled else self.trusted
        if pair.certificate.not_valid_after_utc <= self.now:
            return "it has expired"
        return None if any(pair.certificate.issuer == ca.subject for ca in among) else "no CA leads to it"

    @property
    def served(self) -> KeyPair | None:
        return self.upkeep.served.pair if self.upkeep.served else None

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"tenure_certificate_{name}", labels)


@pytest.fixture(name="world")
def _world() -> Scripted:
    return Scripted()


def offer(ca: KeyPair, *more: KeyPair, end: datetime = NOW + DAY) -> Offer:
    root = ca.certificate
    trusted = (root, *(each.certificate for each in more))
    return Offer(made.leaf(ca, "a", end=end), roots=(root,), trusted=trusted, clients=())


async def test_the_first_certificate_is_served_at_once_and_ready_when_it_is_trusted(world: Scripted) -> None:
    assert world.upkeep.unready() == "there is no certificate yet"
    await world.upkeep.step()
    assert world.upkeep.unready() == "nothing yet"
    world.offered = offer(made.ca())
    assert await world.upkeep.step() == Look(wrote=True, failed=False, pending=False)
    assert world.served is world.offered.pair
    assert world.upkeep.unready() is None
    assert await world.upkeep.step() == CALM


async def test_a_certificate_of_a_new_ca_waits_until_every_api_server_knows_that_ca(world: Scripted) -> None:
    old = world.offered = offer(made.ca("Old"))
    await world.upkeep.step()
    new = world.offered = offer(made.ca("New"))
    assert await world.upkeep.step() == Look(wrote=True, failed=False, pending=True)
    assert world.served is old.pair
    assert world.asked[-1] == {*old.roots, *new.roots}, "what is served goes on being trusted"
    world.settled |= set(new.roots)
    assert await world.upkeep.step() == CALM
    assert world.served is new.pair


async def test_a_certificate_that_nobody_can_trust_is_replaced_at_once(world: Scripted) -> None:
    old = world.offered = offer(made.ca("Old"))
    await world.upkeep.step()
    world.now = old.pair.certificate.not_valid_after_utc
    new = world.offered = offer(made.ca("New"), end=NOW + 2 * DAY)
    await world.upkeep.step()
    assert world.served is new.pair


async def test_a_certificate_that_has_expired_is_replaced_also_where_nobody_can_read_who_is_trusted(
    world: Scripted,
) -> None:
    old = world.offered = offer(made.ca("Old"))
    await world.upkeep.step()
    world.failure = Unreachable("no route")
    waiting = world.offered = offer(made.ca("New"), end=NOW + 2 * DAY)
    await world.upkeep.step()
    assert world.served is old.pair
    world.now = old.pair.certificate.not_valid_after_utc
    await world.upkeep.step()
    assert world.served is waiting.pair


async def test_what_was_read_before_another_replica_repaired_the_trust_replaces_nothing(
    world: Scripted,
) -> None:
    old = world.offered = offer(made.ca("Old"))
    await world.upkeep.step()
    world.outdated = "there is no MutatingWebhookConfiguration yet"
    world.offered = offer(made.ca("New"))
    assert await world.upkeep.step() == Look(wrote=True, failed=False, pending=True)
    assert world.served is old.pair


async def test_a_source_that_fails_does_not_keep_the_ca_bundle_from_being_repaired(world: Scripted) -> None:
    served = world.offered = offer(made.ca())
    await world.upkeep.step()
    world.offered = Unreachable("no route")
    world.trusted.clear()
    assert world.upkeep.unready() == "no CA leads to it"
    assert await world.upkeep.step() == Look(wrote=True, failed=True, pending=False)
    assert world.trusted == set(served.roots)
    assert world.upkeep.unready() is None
    assert world.metric("errors_total", area="source") == 1


async def test_an_injection_that_fails_is_said_beside_its_consequence(world: Scripted) -> None:
    world.offered, world.failure = offer(made.ca()), Unreachable("no route")
    assert (await world.upkeep.step()).failed
    assert world.upkeep.unready() == "no CA leads to it (no route)"
    world.failure = None
    await world.upkeep.step()
    assert world.upkeep.unready() is None


async def test_a_ca_is_not_asked_for_after_its_end(world: Scripted) -> None:
    """Else it would be added and dropped for ever."""
    world.offered = offer(
        made.ca("Long", end=NOW + made.YEAR), made.ca("Short", end=NOW + timedelta(hours=1))
    )
    await world.upkeep.step()
    world.now += timedelta(hours=1)
    await world.upkeep.step()
    assert [len(asked) for asked in world.asked] == [2, 1]


async def test_a_pair_that_openssl_refuses_leaves_the_former_one(world: Scripted) -> None:
    good = world.offered = offer(made.ca("Good"))
    await world.upkeep.step()
    broken = offer(made.ca("Broken"))
    world.offered = Offer(
        KeyPair(broken.pair.certificate, good.pair.key), broken.roots, broken.trusted, clients=()
    )
    world.settled |= set(broken.roots)
    assert (await world.upkeep.step()).failed
    assert world.served is good.pair


async def test_what_a_source_refuses_is_counted(world: Scripted) -> None:
    good = offer(made.ca())
    world.offered = Offer(good.pair, good.roots, good.trusted, clients=(), refused="not yet")
    assert not (await world.upkeep.step()).failed
    assert world.metric("errors_total", area="source") == 1


async def test_metrics_show_the_seconds_left_and_whether_we_are_trusted(world: Scripted) -> None:
    assert world.metric("seconds_left", certificate="leaf") != world.metric(
        "seconds_left", certificate="leaf"
    )
    assert world.metric("trusted") == 0
    world.offered = offer(made.ca(end=NOW + made.DAY * 2))
    await world.upkeep.step()
    assert world.metric("seconds_left", certificate="leaf") == 86_400
    assert world.metric("seconds_left", certificate="ca") == 2 * 86_400
    assert world.metric("trusted") == 1
    assert world.metric("renewals_total", certificate="leaf") == 1


async def test_the_status_page_is_told_what_is_in_use_until_when_and_what_is_wrong(world: Scripted) -> None:
    assert world.upkeep.report() == Certificates((), "there is no certificate yet", ())
    world.offered = replace(
        offer(made.ca("Current"), made.ca("Next", end=NOW + 2 * made.YEAR)), refused="not yet"
    )
    world.failure = Unreachable("no route")
    await world.upkeep.step()
    report = world.upkeep.report()
    assert [(each.purpose, each.name, each.expires) for each in report.certificates] == [
        ("webhook", "CN=leaf", "2026-03-02T12:00:00+00:00"),
        ("CA", "CN=Current", "2027-03-01T12:00:00+00:00"),
        ("next CA", "CN=Next", "2028-02-29T12:00:00+00:00"),
    ]
    assert report.distrust == "no CA leads to it (no route)"
    assert report.troubles == ("no route", "not yet")
