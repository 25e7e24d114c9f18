"""Certificates of other people, as odd as a test needs them. Times are exact: nothing is backdated."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID, ObjectIdentifier

from certs.pki import Key, KeyPair

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
YEAR = timedelta(days=365)


def ca(
    name: str = "Foreign CA",
    *,
    begin: datetime = NOW - DAY,
    end: datetime = NOW + YEAR,
    key: Key | None = None,
    extensions: Sequence[x509.ExtensionType] = (x509.BasicConstraints(ca=True, path_length=None),),
) -> KeyPair:
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, key, begin, end, extensions)
    return KeyPair(builder.issuer_name(_dn(name)).sign(key, hashes.SHA256()), key)


def leaf(
    issuer: KeyPair,
    *names: str,
    begin: datetime = NOW - DAY,
    end: datetime = NOW + DAY,
    usages: Sequence[ObjectIdentifier] = (),
    key: Key | None = None,
    ca: bool = False,
) -> KeyPair:
    key = key or ec.generate_private_key(ec.SECP256R1())
    extensions: list[x509.ExtensionType] = [x509.BasicConstraints(ca=ca, path_length=None)]
    if names:
        extensions.append(x509.SubjectAlternativeName([_name(name) for name in names]))
    if usages:
        extensions.append(x509.ExtendedKeyUsage(usages))
    builder = _builder("Intermediate" if ca else "leaf", key, begin, end, extensions)
    return KeyPair(builder.issuer_name(issuer.certificate.subject).sign(issuer.key, hashes.SHA256()), key)


def _builder(
    name: str, key: Key, begin: datetime, end: datetime, extensions: Sequence[x509.ExtensionType]
) -> x509.CertificateBuilder:
    builder = (
        x509.CertificateBuilder()
        .subject_name(_dn(name))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=False)
    return builder


def _dn(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)
