"""X.509 without any I/O: make a CA and leaves, read what others made, and say in one sentence what is wrong with it.

Keys are P-256: making a CA or a leaf costs about half a millisecond, so it may happen on the event loop. Fields
follow RFC 5280 and what Go's TLS client (the API server) asks for: names only from subjectAltName, key identifiers
on both certificates, a random serial number. Every `now` is aware of its time zone.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certs.reading import ORGANIZATION, UNREADABLE, extension, insist

# Clocks of peers may be behind ours by this much (as in OPA's rotator); a short life is opened earlier by a tenth.
BACKDATE: Final = timedelta(hours=1)
_SERIAL_DIGITS: Final = 8  # Enough of a serial number to tell two CAs apart in a log.

# What `chain` can verify. Ed25519 is left out: the library's verifier, like browsers, does not know it.
Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class PkiError(Exception):
    """A certificate or key that cannot be used; the text is one sentence and never shows key material."""


class Usage(Enum):
    """What a leaf is for."""

    SERVER = ExtendedKeyUsageOID.SERVER_AUTH
    CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True, eq=False)
class KeyPair:
    """A certificate and its private key, with the intermediates that a peer needs to see. Its repr shows no key."""

    certificate: x509.Certificate
    key: Key = field(repr=False)
    intermediates: tuple[x509.Certificate, ...] = ()

    @property
    def certificate_pem(self) -> bytes:
        """The certificate, then its intermediates."""
        return pem(self.certificate, *self.intermediates)

    @property
    def key_pem(self) -> bytes:
        """The private key as PKCS 8, not encrypted: for a Secret or for OpenSSL, never for a log."""
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_ca(*, lifetime: timedelta, now: datetime) -> KeyPair:
    """A new CA of ours that may sign leaves only."""
    key, serial = ec.generate_private_key(ec.SECP256R1()), x509.random_serial_number()
    name = _name(organization=ORGANIZATION, common_name=f"Tenure CA {f'{serial:x}'[:_SERIAL_DIGITS]}")
    certificate = (
        _builder(key, serial)
        .subject_name(name)
        .issuer_name(name)
        .not_valid_before(now - _backdate(lifetime))
        .not_valid_after(now + lifetime)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(ca=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return KeyPair(certificate, key)


def make_leaf(
    ca: KeyPair,
    *,
    names: Collection[str],
    lifetime: timedelta,
    now: datetime,
    usage: Usage = Usage.SERVER,
) -> KeyPair:
    """A leaf for `names` (DNS names and IP addresses, at least one). It never outlives its CA.

    The first name is also the common name: nothing verifies it, people and audit logs read it.
    """
    key, issuer = ec.generate_private_key(ec.SECP256R1()), ca.certificate
    certificate = (
        _builder(key, x509.random_serial_number())
        .subject_name(_name(organization=ORGANIZATION, common_name=next(iter(names))))
        .issuer_name(issuer.subject)
        .not_valid_before(now - _backdate(lifetime))
        .not_valid_after(min(now + lifetime, issuer.not_valid_after_utc))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage.value]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_general_name(name) for name in names]), critical=False)
        .add_extension(_authority_identifier(ca), critical=False)
        .sign(ca.key, hashes.SHA256())
    )
    return KeyPair(certificate, key, ca.intermediates)


def read_pair(certificate_pem: bytes, key_pem: bytes) -> KeyPair:
    """The pair in two PEM texts: first the certificate, behind it its intermediates. Raises PkiError."""
    try:
        certificate, *intermediates = x509.load_pem_x509_certificates(certificate_pem)
        public = certificate.public_key()
        insist(certificate)
    except UNREADABLE:
        raise PkiError(
            "the certificate is unreadable" if certificate_pem else "there is no certificate"
        ) from None
    try:
        # The library's check of an RSA key takes up to 0.6 s; whether it signs for the certificate is tried below.
        key = load_pem_private_key(key_pem, password=None, unsafe_skip_rsa_key_validation=True)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        raise PkiError(
            "the private key is unreadable or encrypted" if key_pem else "there is no key"
        ) from None
    if not isinstance(key, Key):
        raise PkiError("the private key is neither ECDSA nor RSA")
    if key.public_key() != public or not _signs(key):
        raise PkiError("the private key does not belong to the certificate")
    return KeyPair(certificate, key, tuple(intermediates))


def pem(*certificates: x509.Certificate) -> bytes:
    """PEM texts one behind the other."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def _signs(key: Key) -> bool:
    """Whether the private numbers fit the public ones; for ECDSA that was checked when the key was read."""
    if isinstance(key, ec.EllipticCurvePrivateKey):
        return True
    try:
        signature = key.sign(b"", padding.PKCS1v15(), hashes.SHA256())
        key.public_key().verify(signature, b"", padding.PKCS1v15(), hashes.SHA256())
    except (ValueError, InternalError, InvalidSignature):
        return False
    return True


def _builder(key: ec.EllipticCurvePrivateKey, serial: int) -> x509.CertificateBuilder:
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .public_key(public)
        .serial_number(serial)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _name(*, organization: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name[:64]),  # RFC 5280, ub-common-name
        ]
    )


def _backdate(lifetime: timedelta) -> timedelta:
    return min(BACKDATE, lifetime / 10)


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority_identifier(ca: KeyPair) -> x509.AuthorityKeyIdentifier:
    """From the issuer's own identifier where it has one: a foreign CA may have computed it in another way."""
    identifier = extension(ca.certificate, x509.SubjectKeyIdentifier)
    if identifier is not None:
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
