"""Certificates that somebody else makes (cert-manager, a person), judged before they are used. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography import x509

from certs import bundle, chain, pki, reading
from certs.pki import KeyPair, PkiError
from certs.source import Offer

# The names that cert-manager and `kubectl create secret tls` use, and one of our own.
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
CLIENT_AUTHORITY: Final = "client-ca.crt"

Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Supplied:
    """What the files say. Without `authorities` somebody else cares for the caBundle."""

    pair: KeyPair
    authorities: tuple[x509.Certificate, ...]
    clients: tuple[x509.Certificate, ...]

    @classmethod
    def parse(cls, files: Files) -> "Supplied":
        """Raises PkiError."""
        try:
            pair = pki.read_pair(files.get(CERTIFICATE, b""), files.get(KEY, b""))
        except PkiError as error:
            raise PkiError(f"{CERTIFICATE} and {KEY}: {error}") from None
        authorities, clients = (bundle.read(files.get(name, b"")) for name in (AUTHORITY, CLIENT_AUTHORITY))
        if unreadable := [*authorities.unreadable, *clients.unreadable]:
            raise PkiError(f"{AUTHORITY} or {CLIENT_AUTHORITY}: {unreadable[0]}")
        return cls(pair, authorities.certificates, clients.certificates)

    def fault(self, at: datetime) -> str | None:
        """Why no client would take the certificate at that time; None when those who trust `authorities` would."""
        if not self.authorities:
            return reading.outside_validity(self.pair.certificate, at)
        return chain.no_chain(self.pair, roots=self.authorities, now=at)

    def opening(self, now: datetime) -> datetime | None:
        """The next moment from which the certificate holds, if only time is missing."""
        parts = (self.pair.certificate, *self.pair.intermediates, *self.authorities)
        begins = sorted(part.not_valid_before_utc for part in parts if part.not_valid_before_utc > now)
        return next((begin for begin in begins if self.fault(begin) is None), None)

    def offer(self, now: datetime, *, refused: str | None = None) -> Offer:
        """A CA is offered for the caBundle shortly before its time, never earlier and never after its end."""
        roots = tuple(
            ca
            for ca in self.authorities
            if ca.not_valid_before_utc <= now + reading.TOLERANCE and now < ca.not_valid_after_utc
        )
        return Offer(self.pair, roots=roots, trusted=roots, clients=self.clients, refused=refused)


def judged(files: Files, used: Supplied | None, *, clients: bool, now: datetime) -> Supplied:
    """What is in the files. Raises PkiError with the reason why it cannot be used at `now`.

    While what is used still holds, nothing may be early. Without that a few minutes are tolerated: somebody's clock
    is wrong, and nobody knows whose.
    """
    new = Supplied.parse(files)
    if clients and not new.clients:
        raise PkiError(f"{CLIENT_AUTHORITY} is missing, and the extender listens beyond loopback")
    fault = new.fault(now)
    tolerable = (used is None or used.fault(now)) and new.fault(now + reading.TOLERANCE) is None
    if fault is None or tolerable:
        return new
    opening = new.opening(now)
    raise PkiError(f"its time has not come: valid in {reading.duration(opening - now)}" if opening else fault)
