"""Would the API server trust this certificate? Answered as its TLS client (Go, crypto/x509) would answer, at any time.

The library's own web profile is stricter than Go and would refuse a user's certificate that works; so only what Go
demands is demanded: a chain to a root, every certificate in its validity, the name, and the server usage if a usage
is given at all.
"""

from collections.abc import Collection
from datetime import datetime
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Criticality, ExtensionPolicy, PolicyBuilder, Store

from certs import reading
from certs.pki import KeyPair


def _has_server_usage(
    _policy: verification.Policy, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None
) -> None:
    accepted = {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
    if usage is not None and accepted.isdisjoint(usage):
        raise ValueError("its extended key usage lacks server authentication")


_CA_POLICY: Final = ExtensionPolicy.permit_all().require_present(
    x509.BasicConstraints, Criticality.AGNOSTIC, None
)
_LEAF_POLICY: Final = ExtensionPolicy.permit_all().may_be_present(
    x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _has_server_usage
)


def distrust(pair: KeyPair, *, roots: Collection[x509.Certificate], host: str, now: datetime) -> str | None:
    """Why a client that trusts `roots` and calls `host` would refuse the pair at `now`; None: it would not."""
    if not covers(pair.certificate, host):
        present = ", ".join(sorted(names(pair.certificate))) or "nothing, and only subjectAltName counts"
        return f"the certificate does not name {host}; it names {present}"
    return no_chain(pair, roots=roots, now=now)


def no_chain(pair: KeyPair, *, roots: Collection[x509.Certificate], now: datetime) -> str | None:
    """Why no chain leads from one of the roots to the pair at `now`; None when one does. Names are not looked at."""
    if reason := reading.outside_validity(pair.certificate, now):
        return f"the certificate: {reason}"
    if not roots:
        return "there is no CA to trust"
    # The verifier for clients, because it leaves names alone: those were compared above, with a better sentence.
    verifier = (
        PolicyBuilder()
        .store(Store(list(roots)))
        .time(now)
        .extension_policies(ca_policy=_CA_POLICY, ee_policy=_LEAF_POLICY)
        .build_client_verifier()
    )
    try:
        verifier.verify(pair.certificate, list(pair.intermediates))
    except (verification.VerificationError, *reading.UNREADABLE) as error:
        return f"no trusted CA leads to the certificate ({_shortened(error)})"
    return None


def names(certificate: x509.Certificate) -> frozenset[str]:
    """The DNS names and IP addresses that the certificate is for."""
    found = reading.extension(certificate, x509.SubjectAlternativeName)
    if found is None:
        return frozenset()
    addresses = found.get_values_for_type(x509.IPAddress)
    return frozenset([*found.get_values_for_type(x509.DNSName), *map(str, addresses)])


def covers(certificate: x509.Certificate, host: str) -> bool:
    """Whether the certificate is for `host`, by name or by a wildcard for its first label."""
    present = {_canonical(name) for name in names(certificate)}
    parent = host.partition(".")[2]
    return _canonical(host) in present or (bool(parent) and f"*.{parent.lower()}" in present)


def _canonical(host: str) -> str:
    """DNS names compare without case; an IPv6 address may be written in several ways."""
    try:
        return str(ip_address(host))
    except ValueError:
        return host.lower()


def _shortened(error: Exception) -> str:
    """The library's words without its frame and without the repr of the certificate."""
    text = str(error).removeprefix("validation failed: ").removeprefix("candidates exhausted: ")
    return text.partition(" (encountered")[0].rpartition("ValueError: ")[2]
