"""What a certificate says about itself: its times, its purpose, its names, and a sentence where something is wrong.

Every `now` is aware of its time zone.
"""

from datetime import datetime, timedelta
from typing import Final, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID

# A certificate of somebody else may begin this much later: one of the clocks is wrong, and nobody knows which.
TOLERANCE: Final = timedelta(minutes=5)
# The share of its life after which a certificate is renewed (cert-manager, pkg/server/tls).
RENEW_AFTER: Final = 2 / 3
ORGANIZATION: Final = "Tenure"

# What the library raises for a certificate that breaks the rules, some of it only when a field is asked for.
UNREADABLE: Final = (
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)

E = TypeVar("E", bound=x509.ExtensionType)


def renew_at(certificate: x509.Certificate) -> datetime:
    """The moment from which the certificate should be replaced."""
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * RENEW_AFTER


def insist(certificate: x509.Certificate) -> None:
    """Read whatever signing and serving rely on, because the library reads only when asked. Raises UNREADABLE."""
    renew_at(certificate)
    for name in (certificate.subject, certificate.issuer):
        name.rfc4514_string()


def outside_validity(certificate: x509.Certificate, now: datetime) -> str | None:
    """Why the certificate does not hold at `now`, with the time that is between; None when it does."""
    if now < certificate.not_valid_before_utc:
        return f"valid in {duration(certificate.not_valid_before_utc - now)}"
    if now >= certificate.not_valid_after_utc:
        return f"expired {duration(now - certificate.not_valid_after_utc)} ago"
    return None


def unfit_as_ca(certificate: x509.Certificate, now: datetime) -> str | None:
    """Why nothing can be signed with the certificate's key at `now`; None when it can."""
    constraints = extension(certificate, x509.BasicConstraints)
    if constraints is None or not constraints.ca:
        return "it is not a CA certificate"
    usage = extension(certificate, x509.KeyUsage)
    if usage is not None and not usage.key_cert_sign:
        return "its key usage does not allow to sign certificates"
    return outside_validity(certificate, now)


def signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether the issuer's key made the signature."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (*UNREADABLE, InvalidSignature):
        return False
    return True


def is_ours(certificate: x509.Certificate) -> bool:
    """Whether this is a CA that Tenure made for itself."""
    try:
        name, issuer = certificate.subject, certificate.issuer
    except UNREADABLE:
        return False
    organizations = [part.value for part in name.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    return name == issuer and organizations == [ORGANIZATION]


def extension(certificate: x509.Certificate, kind: type[E]) -> E | None:
    """The value of an extension; None when it is absent or unreadable."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (*UNREADABLE, x509.ExtensionNotFound):
        return None


def described(certificate: x509.Certificate) -> str:
    """A short name for people."""
    try:
        name = certificate.subject.rfc4514_string()
    except UNREADABLE:
        name = ""
    return name or f"serial {certificate.serial_number:x}"


def duration(span: timedelta) -> str:
    """The two largest units of a time, rounded down: `2 h 59 min`."""
    rest, parts = int(span.total_seconds()), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"
