"""Certificates that somebody else makes (cert-manager, a person), found as files and judged before they are used."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509

from certs import bundle, chain, pki
from certs.pki import KeyPair, PkiError
from certs.source import Offer

# The names that cert-manager and `kubectl create secret tls` use, and one of our own.
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
AUTHORITY: Final = "ca.crt"
CLIENT_AUTHORITY: Final = "client-ca.crt"
# A Secret holds at most 1 MiB.
_MAX_BYTES: Final = 1 << 20

Files = Mapping[str, bytes]

log = structlog.get_logger(__name__)


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
            return pki.outside_validity(self.pair.certificate, at)
        return chain.no_chain(self.pair, roots=self.authorities, now=at)

    def opening(self, now: datetime) -> datetime | None:
        """The next moment from which the certificate holds, if only time is missing."""
        parts = (self.pair.certificate, *self.pair.intermediates, *self.authorities)
        begins = sorted(part.not_valid_before_utc for part in parts if part.not_valid_before_utc > now)
        return next((begin for begin in begins if self.fault(begin) is None), None)

    def offer(self, now: datetime) -> Offer:
        """A CA is offered for the caBundle shortly before its time, never earlier and never after its end."""
        roots = tuple(
            ca
            for ca in self.authorities
            if ca.not_valid_before_utc <= now + pki.TOLERANCE and now < ca.not_valid_after_utc
        )
        return Offer(self.pair, roots=roots, trusted=roots, clients=self.clients, retired=lambda _: False)


def judged(files: Files, used: Supplied | None, now: datetime) -> Supplied:
    """What is in the files. Raises PkiError with the reason why it cannot be used at `now`.

    While what is used still holds, nothing may be early. Without that a few minutes are tolerated: somebody's clock
    is wrong, and nobody knows whose.
    """
    new = Supplied.parse(files)
    fault = new.fault(now)
    tolerable = (used is None or used.fault(now)) and new.fault(now + pki.TOLERANCE) is None
    if fault is None or tolerable:
        return new
    opening = new.opening(now)
    raise PkiError(f"its time has not come: valid in {pki.duration(opening - now)}" if opening else fault)


class SuppliedFiles:
    """The files of one folder, read again at each call. Only what can be used replaces what is used."""

    def __init__(self, directory: Path, *, now: Callable[[], datetime]) -> None:
        self._directory = directory
        self._now = now
        self._used: Supplied | None = None
        self._used_files: Files = {}
        self._refused: Files | None = None

    async def offer(self) -> Offer:
        """The newest set that can be used. Raises OSError or PkiError when there is none and never was one."""
        now, files = self._now(), await asyncio.to_thread(_read, self._directory)
        if self._used is None or files != self._used_files:
            self._used = self._better(files, self._used, now)
        return self._used.offer(now)

    def _better(self, files: Files, used: Supplied | None, now: datetime) -> Supplied:
        try:
            new = judged(files, used, now)
        except PkiError as error:
            if files != self._refused:
                log.warning("certificate files refused", directory=str(self._directory), reason=str(error))
            self._refused = files
            if used is None:
                raise
            return used
        self._used_files = files
        log.info("certificate files taken into use", certificate=pki.described(new.pair.certificate))
        return new


def _read(directory: Path) -> Files:
    """The files that exist; kubelet swaps all of them at once by a symbolic link, other writers one by one."""
    found = {}
    for name in (CERTIFICATE, KEY, AUTHORITY, CLIENT_AUTHORITY):
        with suppress(FileNotFoundError), (directory / name).open("rb") as file:
            found[name] = file.read(_MAX_BYTES)
    return found
