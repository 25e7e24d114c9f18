"""Certificate files in a folder that somebody else fills: a mounted Secret, or a person's hand."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog

from certs import reading
from certs.pki import PkiError
from certs.source import Offer
from certs.supplied import AUTHORITY, CERTIFICATE, CLIENT_AUTHORITY, KEY, Files, Supplied, judged

# A Secret holds at most 1 MiB.
_MAX_BYTES: Final = 1 << 20

log = structlog.get_logger(__name__)


class SuppliedFiles:
    """The files of one folder, read again at each call. Only what can be used replaces what is used.

    `clients`: a CA for client certificates must be among them.
    """

    def __init__(self, directory: Path, *, clients: bool, now: Callable[[], datetime]) -> None:
        self._directory = directory
        self._clients = clients
        self._now = now
        self._used: Supplied | None = None
        self._used_files: Files = {}
        self._refused: Files = {}

    async def offer(self) -> Offer:
        """The newest set that can be used. Raises OSError or PkiError when there is none and never was one."""
        now, files = self._now(), await asyncio.to_thread(_read, self._directory)
        if self._used is not None and files == self._used_files:
            return self._used.offer(now)
        try:
            new = judged(files, self._used, clients=self._clients, now=now)
        except PkiError as error:
            reason = f"{self._directory}: {error}"
            if self._used is None:
                raise PkiError(reason) from None
            self._complain(files, reason)
            return self._used.offer(now, refused=reason)
        self._used, self._used_files = new, files
        log.info("certificate files taken into use", certificate=reading.described(new.pair.certificate))
        return new.offer(now)

    def _complain(self, files: Files, reason: str) -> None:
        """Once for each set of files: the reason holds a time that goes down."""
        if files != self._refused:
            self._refused = files
            log.warning("certificate files refused, the former ones stay in use", reason=reason)


def _read(directory: Path) -> Files:
    """The files that exist; kubelet swaps all of them at once by a symbolic link, other writers one by one."""
    found = {}
    for name in (CERTIFICATE, KEY, AUTHORITY, CLIENT_AUTHORITY):
        with suppress(FileNotFoundError), (directory / name).open("rb") as file:
            found[name] = file.read(_MAX_BYTES)
    return found
