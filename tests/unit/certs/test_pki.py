"""Making certificates, and reading pairs that others made."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from certs import chain, pki, reading
from certs.pki import KeyPair, PkiError, Usage
from tests.unit.certs import made
from tests.unit.certs.made import DAY, NOW, YEAR
from tests.unit.certs.tls import handshake, trusting

RSA = rsa.generate_private_key(65537, 2048)
NAMES = ("tenure.tenure-system.svc", "tenure", "127.0.0.1", "fd00::1")


@pytest.fixture(name="ca")
def _ca() -> KeyPair:
    return pki.make_ca(lifetime=10 * YEAR, now=NOW)


def leaf_of(ca: KeyPair, *, lifetime: timedelta = 7 * DAY, usage: Usage = Usage.SERVER) -> KeyPair:
    return pki.make_leaf(ca, names=NAMES, lifetime=lifetime, now=NOW, usage=usage)


@pytest.mark.parametrize("name", NAMES)
def test_a_leaf_is_trusted_by_each_of_its_names(ca: KeyPair, name: str) -> None:
    assert chain.distrust(leaf_of(ca), roots=[ca.certificate], host=name, now=NOW) is None


def test_a_leaf_holds_for_a_peer_whose_clock_is_almost_an_hour_behind(ca: KeyPair) -> None:
    behind = NOW - timedelta(minutes=59)
    assert chain.distrust(leaf_of(ca), roots=[ca.certificate], host="tenure", now=behind) is None


def test_a_leaf_never_outlives_its_ca(ca: KeyPair) -> None:
    leaf = leaf_of(ca, lifetime=20 * YEAR)
    assert leaf.certificate.not_valid_after_utc == ca.certificate.not_valid_after_utc


def test_a_short_life_is_backdated_by_a_tenth_so_that_two_thirds_of_it_are_not_over_at_once() -> None:
    ca = pki.make_ca(lifetime=timedelta(minutes=5), now=NOW)
    assert ca.certificate.not_valid_before_utc == NOW - timedelta(seconds=30)
    assert reading.renew_at(ca.certificate) == NOW + timedelta(seconds=190)


def test_a_ca_may_sign_leaves_and_nothing_else(ca: KeyPair) -> None:
    constraints = reading.extension(ca.certificate, x509.BasicConstraints)
    usage = reading.extension(ca.certificate, x509.KeyUsage)
    assert constraints is not None
    assert (constraints.ca, constraints.path_length) == (True, 0)
    assert usage is not None
    assert usage.key_cert_sign
    assert not usage.digital_signature
    assert reading.unfit_as_ca(ca.certificate, NOW) is None


def test_two_cas_are_told_apart_by_name_and_serial_number() -> None:
    one, other = (pki.make_ca(lifetime=YEAR, now=NOW).certificate for _ in range(2))
    assert one.subject != other.subject
    assert one.serial_number != other.serial_number


def test_a_key_is_not_shown_by_accident(ca: KeyPair) -> None:
    shown = f"{ca!r} {ca} {[ca]}"
    assert "Tenure CA" in shown
    assert "PrivateKey" not in shown
    assert "PRIVATE" not in shown


def test_a_foreign_ca_in_the_secret_can_sign() -> None:
    foreign = made.ca(key=ec.generate_private_key(ec.SECP384R1()))
    adopted = pki.read_pair(foreign.certificate_pem, foreign.key_pem)
    leaf = leaf_of(adopted)
    assert chain.distrust(leaf, roots=[foreign.certificate], host="tenure", now=NOW) is None


def test_a_leaf_repeats_the_key_identifier_that_its_issuer_chose() -> None:
    chosen = x509.SubjectKeyIdentifier(b"chosen by somebody else")
    foreign = made.ca(extensions=[x509.BasicConstraints(ca=True, path_length=None), chosen])
    identifier = reading.extension(leaf_of(foreign).certificate, x509.AuthorityKeyIdentifier)
    assert identifier is not None
    assert identifier.key_identifier == chosen.digest


def test_a_pair_survives_the_way_through_text(ca: KeyPair) -> None:
    intermediate = made.leaf(ca, ca=True)
    pair = KeyPair(leaf_of(ca).certificate, ca.key, (intermediate.certificate,))
    with pytest.raises(PkiError, match="does not belong"):
        pki.read_pair(pair.certificate_pem, pair.key_pem)
    leaf = leaf_of(ca)
    again = pki.read_pair(leaf.certificate_pem + intermediate.certificate_pem, leaf.key_pem)
    assert (again.certificate, again.intermediates) == (leaf.certificate, (intermediate.certificate,))
    assert again.key_pem == leaf.key_pem


def broken_rsa() -> KeyPair:
    """The public half is right, the private half is not: no library notices while reading it."""
    numbers = RSA.private_numbers()
    fields = {name: getattr(numbers, name) for name in ("p", "q", "d", "dmp1", "dmq1", "iqmp")}
    fields |= {"d": numbers.d + 2, "iqmp": numbers.iqmp + 2}
    broken = rsa.RSAPrivateNumbers(public_numbers=numbers.public_numbers, **fields)
    return KeyPair(made.ca(key=RSA).certificate, broken.private_key(unsafe_skip_rsa_key_validation=True))


def test_an_rsa_pair_is_read_and_one_that_signs_nothing_is_not() -> None:
    whole, broken = made.ca(key=RSA), broken_rsa()
    assert pki.read_pair(whole.certificate_pem, whole.key_pem).certificate == whole.certificate
    with pytest.raises(PkiError, match="does not belong"):
        pki.read_pair(broken.certificate_pem, broken.key_pem)


def ed25519_pem() -> bytes:
    key = ed25519.Ed25519PrivateKey.generate()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def encrypted(pair: KeyPair) -> bytes:
    return pair.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


@pytest.mark.parametrize(
    ("certificate", "key", "reason"),
    [
        (lambda _: b"", lambda pair: pair.key_pem, "there is no certificate"),
        (lambda pair: pair.certificate_pem, lambda _: b"", "there is no key"),
        (lambda _: b"garbage", lambda pair: pair.key_pem, "the certificate is unreadable"),
        (lambda pair: pair.certificate_pem[:-40], lambda pair: pair.key_pem, "the certificate is unreadable"),
        (lambda pair: pair.certificate_pem, lambda _: b"garbage", "unreadable or encrypted"),
        (lambda pair: pair.certificate_pem, encrypted, "unreadable or encrypted"),
        (lambda pair: pair.certificate_pem, lambda _: made.ca().key_pem, "does not belong"),
        (lambda pair: pair.certificate_pem, lambda _: ed25519_pem(), "neither ECDSA nor RSA"),
    ],
)
def test_an_unusable_pair_is_refused_with_its_reason(
    ca: KeyPair, certificate: Callable[[KeyPair], bytes], key: Callable[[KeyPair], bytes], reason: str
) -> None:
    with pytest.raises(PkiError, match=reason) as refusal:
        pki.read_pair(certificate(ca), key(ca))
    assert "PRIVATE" not in str(refusal.value)


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (made.leaf(made.ca(), "a").certificate, "it is not a CA certificate"),
        (made.ca(extensions=[]).certificate, "it is not a CA certificate"),
        (made.ca(end=NOW).certificate, "expired 0 s ago"),
        (made.ca(begin=NOW + DAY).certificate, "valid in 1 d"),
        (
            pki.make_leaf(made.ca(), names=["a"], lifetime=DAY, now=NOW).certificate,
            "it is not a CA certificate",
        ),
    ],
)
def test_what_cannot_sign_is_no_ca(certificate: x509.Certificate, reason: str) -> None:
    assert reading.unfit_as_ca(certificate, NOW) == reason


def test_a_ca_without_the_right_to_sign_certificates_is_none() -> None:
    usage = reading.extension(leaf_of(made.ca()).certificate, x509.KeyUsage)
    assert usage is not None
    crippled = made.ca(extensions=[x509.BasicConstraints(ca=True, path_length=None), usage])
    assert (
        reading.unfit_as_ca(crippled.certificate, NOW) == "its key usage does not allow to sign certificates"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (10_799, "2 h 59 min"),
        (86_401, "1 d 1 s"),
        (8 * 86_400, "8 d"),
    ],
)
def test_a_duration_is_short_and_never_too_long(seconds: float, text: str) -> None:
    assert reading.duration(timedelta(seconds=seconds)) == text


def test_openssl_in_its_strictest_mood_accepts_what_we_make(tmp_path: Path) -> None:
    """The time of day is the real one here: OpenSSL asks nobody else."""
    now = datetime.now(UTC)
    real = pki.make_ca(lifetime=YEAR, now=now)
    leaf = pki.make_leaf(real, names=NAMES, lifetime=DAY, now=now)
    files = tmp_path / "pair.pem"
    files.write_bytes(leaf.certificate_pem + leaf.key_pem)
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), trusting(real)
    server.load_cert_chain(files)
    client.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    session, _ = handshake(client, server, host="tenure.tenure-system.svc")
    assert session.version() == "TLSv1.3"
