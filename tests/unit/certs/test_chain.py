"""Whether the API server's TLS client would trust a certificate."""

from datetime import datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID as Usage
from cryptography.x509.oid import ObjectIdentifier

from certs import chain
from certs.pki import KeyPair
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW

HOST = "tenure.tenure-system.svc"
ROOT = made.ca()


def distrust(pair: KeyPair, *roots: KeyPair, host: str = HOST, now: datetime = NOW) -> str | None:
    return chain.distrust(pair, roots=[root.certificate for root in roots or [ROOT]], host=host, now=now)


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (HOST, HOST),
        (HOST, HOST.upper()),
        ("*.tenure-system.svc", HOST),
        ("127.0.0.1", "127.0.0.1"),
        ("fd00::1", "fd00:0:0:0:0:0:0:1"),
        ("tenure", "tenure"),
    ],
)
def test_a_name_is_recognised(name: str, host: str) -> None:
    assert distrust(made.leaf(ROOT, name), host=host) is None


@pytest.mark.parametrize(
    ("names", "host", "reason"),
    [
        (["other.svc"], HOST, f"does not name {HOST}; it names other.svc"),
        (["*.svc"], HOST, "does not name"),
        (["*.tenure.tenure-system.svc"], HOST, "does not name"),
        (["127.0.0.1"], "127.0.0.2", "does not name"),
        ([], HOST, "only subjectAltName counts"),
        ([HOST], "", "does not name"),
    ],
)
def test_a_missing_name_is_said(names: list[str], host: str, reason: str) -> None:
    assert reason in str(distrust(made.leaf(ROOT, *names), host=host))


def test_a_certificate_is_judged_at_the_given_time() -> None:
    leaf = made.leaf(ROOT, HOST, begin=NOW, end=NOW + DAY)
    assert distrust(leaf, now=NOW - timedelta(hours=3)) == "the certificate: valid in 3 h"
    assert distrust(leaf, now=NOW) is None
    assert distrust(leaf, now=NOW + 8 * DAY) == "the certificate: expired 7 d ago"


def test_a_ca_outside_its_time_leads_nowhere() -> None:
    for outside in (made.ca(end=NOW - DAY), made.ca(begin=NOW + DAY)):
        assert "no trusted CA leads to the certificate" in str(distrust(made.leaf(outside, HOST), outside))


def test_another_ca_with_the_same_name_does_not_help_and_does_not_harm() -> None:
    namesake = made.ca()
    leaf = made.leaf(ROOT, HOST)
    assert "signature" in str(distrust(leaf, namesake))
    assert distrust(leaf, namesake, ROOT) is None


def test_without_a_ca_nothing_is_trusted() -> None:
    assert chain.distrust(made.leaf(ROOT, HOST), roots=[], host=HOST, now=NOW) == "there is no CA to trust"


def test_an_intermediate_is_needed_where_there_is_one() -> None:
    between = made.leaf(ROOT, ca=True)
    leaf = made.leaf(between, HOST)
    assert "no trusted CA" in str(distrust(leaf))
    assert distrust(KeyPair(leaf.certificate, leaf.key, (between.certificate,))) is None
    assert distrust(leaf, between) is None


@pytest.mark.parametrize("usages", [[], [Usage.SERVER_AUTH], [Usage.ANY_EXTENDED_KEY_USAGE]])
def test_a_usage_that_go_accepts_is_accepted(usages: list[ObjectIdentifier]) -> None:
    assert distrust(made.leaf(ROOT, HOST, usages=usages)) is None


def test_a_client_certificate_is_none_for_a_server() -> None:
    reason = distrust(made.leaf(ROOT, HOST, usages=[Usage.CLIENT_AUTH]))
    assert reason == (
        "no trusted CA leads to the certificate (its extended key usage lacks server authentication)"
    )


def test_a_weak_key_is_refused() -> None:
    weak = made.ca(key=rsa.generate_private_key(65537, 1024))  # noqa: S505 - that is the point
    assert "too weak" in str(distrust(made.leaf(weak, HOST), weak))
