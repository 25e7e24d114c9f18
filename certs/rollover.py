"""The rules of the CA Secret, without any I/O: what it holds, and what has to change in it now.

    current ──2/3 of its life──▶ current + next ──middle of the overlap──▶ next is current ──▶ the old one expires

Both CAs are trusted from the moment there are two; leaves are signed by `current` alone. The middle of the overlap
follows from the certificates themselves, so any replica at any time comes to the same decision.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from certs import pki, reading
from certs.pki import KeyPair, PkiError

# Keys of the Secret's data.
CURRENT: Final = ("tls.crt", "tls.key")
NEXT: Final = ("next.crt", "next.key")
SINCE: Final = "since"

# After a change of the CA every replica serves a leaf of the new one within minutes; a day is for those that cannot.
RETIRE_AFTER: Final = timedelta(days=1)

Data = Mapping[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Authorities:
    """A Secret in order. `since`: when `current` became it; None when nobody knows."""

    current: KeyPair
    upcoming: KeyPair | None = None
    since: datetime | None = None

    @property
    def trusted(self) -> tuple[x509.Certificate, ...]:
        """What belongs into the caBundle."""
        return tuple(pair.certificate for pair in (self.current, self.upcoming) if pair)

    def data(self) -> Data:
        """The Secret's data; None for keys that must not be there."""
        return {
            **_pem(CURRENT, self.current),
            **_pem(NEXT, self.upcoming),
            SINCE: self.since.isoformat(timespec="seconds").encode() if self.since else None,
        }

    def retired(self, *, leaf_lifetime: timedelta, now: datetime) -> Callable[[x509.Certificate], bool]:
        """Whether a CA is one of ours from before `current` that no leaf can need any more."""
        if self.since is None or now < self.since + leaf_lifetime + RETIRE_AFTER:
            return lambda _: False
        begin = self.current.certificate.not_valid_before_utc
        return lambda ca: reading.is_ours(ca) and ca.not_valid_before_utc < begin


@dataclass(frozen=True, slots=True)
class Held:
    """What a Secret holds, whoever wrote it: only pairs that can sign, and for each missing one the reason."""

    current: KeyPair | None
    upcoming: KeyPair | None
    since: datetime | None
    current_fault: str
    upcoming_fault: str

    @classmethod
    def read(cls, data: Mapping[str, bytes], now: datetime) -> "Held":
        """Read the data of a Secret; anything may be in it."""
        current, fault = _pair(data, CURRENT, now)
        upcoming, upcoming_fault = _pair(data, NEXT, now)
        return cls(current, upcoming, _time(data.get(SINCE, b"")), fault, upcoming_fault)


@dataclass(frozen=True, slots=True)
class Plan:
    """What the Secret has to hold, and why it must change for that; no reason: it holds it already."""

    to: Authorities
    reason: str | None = None


def plan(
    held: Held, *, now: datetime, lifetime: timedelta, published: Callable[[x509.Certificate], bool]
) -> Plan:
    """What is due now. `published`: whether every caBundle has held the CA long enough to sign with it."""
    if held.current is None:
        return _replacement(held, now, lifetime)
    if held.upcoming is None:
        return _preparation(held, held.current, now, lifetime)
    begin, end = held.upcoming.certificate.not_valid_before_utc, held.current.certificate.not_valid_after_utc
    if now >= begin + (end - begin) / 2 and published(held.upcoming.certificate):
        return Plan(Authorities(held.upcoming, since=now), "the next CA's time has come")
    return Plan(Authorities(held.current, held.upcoming, held.since))


def leaf_due(leaf: x509.Certificate, ca: x509.Certificate, now: datetime) -> str | None:
    """Why a leaf must be followed by another one; None while it need not."""
    if reason := reading.outside_validity(leaf, now):
        return reason
    if not reading.signed_by(leaf, ca):
        return "the CA is another one now"
    return "two thirds of its life are over" if now >= reading.renew_at(leaf) else None


def _replacement(held: Held, now: datetime, lifetime: timedelta) -> Plan:
    if held.upcoming is not None:
        return Plan(Authorities(held.upcoming, since=now), f"{held.current_fault}; the next CA takes over")
    return Plan(Authorities(pki.make_ca(lifetime=lifetime, now=now), since=now), held.current_fault)


def _preparation(held: Held, current: KeyPair, now: datetime, lifetime: timedelta) -> Plan:
    if now >= reading.renew_at(current.certificate):
        upcoming = pki.make_ca(lifetime=lifetime, now=now)
        return Plan(Authorities(current, upcoming, held.since), "two thirds of the CA's life are over")
    reason = f"the next CA is useless: {held.upcoming_fault}" if held.upcoming_fault else None
    return Plan(Authorities(current, None, held.since), reason)


def _pair(data: Mapping[str, bytes], keys: tuple[str, str], now: datetime) -> tuple[KeyPair | None, str]:
    certificate, key = (data.get(name, b"") for name in keys)
    if not certificate and not key:
        return None, "there is no CA yet" if keys == CURRENT else ""
    try:
        pair = pki.read_pair(certificate, key)
    except PkiError as error:
        return None, str(error)
    if not isinstance(pair.key, ec.EllipticCurvePrivateKey):
        return None, "the CA cannot be used: its key is no ECDSA key, and others keep the event loop too long"
    fault = reading.unfit_as_ca(pair.certificate, now)
    return (None, f"the CA cannot be used: {fault}") if fault else (pair, "")


def _pem(keys: tuple[str, str], pair: KeyPair | None) -> Data:
    certificate, key = keys
    return {certificate: pair.certificate_pem if pair else None, key: pair.key_pem if pair else None}


def _time(text: bytes) -> datetime | None:
    try:
        time = datetime.fromisoformat(text.decode())
    except ValueError:
        return None
    return time if time.tzinfo else None
