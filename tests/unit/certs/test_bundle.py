"""Merging caBundles: field case F3 and its relatives."""

from base64 import b64encode
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from certs import bundle, chain, pki, reading, rollover
from certs.bundle import Merge
from certs.pki import KeyPair, PkiError, pem
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW, YEAR

OURS = pki.make_ca(lifetime=YEAR, now=NOW).certificate
OTHER = made.ca("Other").certificate
EARLY = made.ca("Early", begin=NOW + DAY).certificate
EXPIRED = made.ca("Expired", begin=NOW - 2 * DAY, end=NOW - DAY).certificate
JUNK = b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"


def merge(text: bytes) -> Merge:
    return bundle.merge(text, [OURS], now=NOW)


@pytest.mark.parametrize(
    ("text", "dropped"),
    [
        (b"", ()),
        (b"\n", ()),
        (b"not pem", ("the text holds no certificate",)),
        (JUNK, ("part 1 is no readable certificate",)),
        (pem(EXPIRED), ("CN=Expired expired 1 d ago",)),
        (made.ca().key_pem, ("part 1 is no readable certificate",)),
        (JUNK + pem(OTHER), ("part 1 is no readable certificate",)),
        (b"text before\n" + pem(OTHER) + b"\n\n" + pem(EXPIRED), ("CN=Expired expired 1 d ago",)),
    ],
)
def test_a_bundle_that_is_none_becomes_one_and_what_was_dropped_is_said(
    text: bytes, dropped: tuple[str, ...]
) -> None:
    others = [OTHER] if pem(OTHER) in text else []
    first = merge(text)
    assert first == Merge(pem(*others, OURS), dropped)
    assert merge(first.pem) == Merge(first.pem), "a second pass has nothing left to do"


def test_a_bundle_that_holds_ours_is_left_exactly_as_it_is() -> None:
    text = b"# kept by somebody\r\n" + pem(OTHER).replace(b"\n", b"\r\n") + b"\n" + pem(OURS, OURS) + b"\n"
    assert merge(text) == Merge(text)


def test_a_ca_of_somebody_else_whose_time_has_not_come_stays() -> None:
    assert merge(pem(EARLY)) == Merge(pem(EARLY, OURS))


@pytest.mark.parametrize(
    "text",
    [
        b"  " + pem(OTHER),
        pem(OTHER).replace(b"-----BEGIN", b"x-----BEGIN"),
        pem(OTHER).replace(b"-----\n", b"-----\nProc-Type: 4,ENCRYPTED\n\n", 1),
        pem(OTHER).replace(b"CERTIFICATE", b"TRUSTED CERTIFICATE"),
        pem(OTHER).replace(b"-----END", b" -----END"),
    ],
)
def test_a_frame_that_go_does_not_read_does_not_count(text: bytes) -> None:
    assert bundle.read(text).certificates == ()


def test_a_retired_ca_leaves_unless_it_is_wanted_again() -> None:
    text = pem(OTHER, OURS)
    gone = bundle.merge(text, [OURS], now=NOW, retired=lambda ca: ca in (OTHER, OURS))
    assert gone == Merge(pem(OURS), ("CN=Other is retired",))


valid = st.sampled_from([OTHER, EARLY, OURS, made.ca("Third").certificate])
parts = st.one_of(
    valid.map(pem), st.sampled_from([JUNK, pem(EXPIRED), b"text\n", b"\n"]), st.binary(max_size=20)
)


@given(st.lists(parts, max_size=8))
def test_no_valid_ca_is_ever_lost_and_ours_is_always_there(texts: list[bytes]) -> None:
    text = b"\n".join(texts)
    merged = merge(text)
    kept = set(bundle.read(merged.pem).certificates)
    alive = {ca for ca in bundle.read(text).certificates if ca != EXPIRED}
    assert kept == alive | {OURS}
    assert merge(merged.pem) == Merge(merged.pem)


ISSUER = made.ca("Issuer")
SIGNED = made.leaf(ISSUER, "a", "127.0.0.1", usages=[ExtendedKeyUsageOID.SERVER_AUTH])


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A certificate with a few wrong bytes, in a frame that is intact."""
    der = bytearray(draw(st.sampled_from([OTHER, OURS, SIGNED.certificate])).public_bytes(Encoding.DER))
    for _ in range(draw(st.integers(1, 3))):
        der[draw(st.integers(0, len(der) - 1))] = draw(st.integers(0, 255))
    return b"-----BEGIN CERTIFICATE-----\n" + b64encode(der) + b"\n-----END CERTIFICATE-----\n"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@settings(max_examples=100, deadline=None)
@given(damaged())
def test_a_damaged_certificate_never_stops_us(text: bytes) -> None:
    merged = bundle.merge(text, [OURS], now=NOW, retired=reading.is_ours)
    found = bundle.read(merged.pem)
    assert OURS in found.certificates
    for certificate in bundle.read(text).certificates:
        assert reading.described(certificate)
        reading.unfit_as_ca(certificate, NOW)
        pair = KeyPair(certificate, SIGNED.key)
        chain.distrust(pair, roots=[ISSUER.certificate], host="a", now=NOW)
        chain.distrust(SIGNED, roots=[certificate], host="a", now=NOW)
        rollover.leaf_due(certificate, ISSUER.certificate, NOW)
    with suppress(PkiError):
        pki.read_pair(text, SIGNED.key_pem)


def test_an_equal_certificate_counts_once() -> None:
    again = x509.load_pem_x509_certificate(pem(OTHER))
    assert bundle.read(pem(OTHER) + pem(again)).certificates == (OTHER,)
