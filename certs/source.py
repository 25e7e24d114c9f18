"""Where a certificate comes from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from cryptography import x509

from certs.pki import KeyPair

Retired = Callable[[x509.Certificate], bool]


def _none_retired(_: x509.Certificate) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Offer:
    """A certificate to serve, and whom its clients have to trust for that."""

    pair: KeyPair
    """One object for as long as the source has nothing else to offer."""
    roots: tuple[x509.Certificate, ...]
    """CAs that lead to `pair`: they stay in the caBundle for as long as it is served."""
    trusted: tuple[x509.Certificate, ...]
    """CAs that belong into the caBundle now, also those that will sign only later."""
    clients: tuple[x509.Certificate, ...]
    """CAs whose client certificates may call the extender."""
    retired: Retired = _none_retired
    """CAs that must leave the caBundle."""
    refused: str | None = None
    """Why something newer that was found is not offered."""


class Source(Protocol):
    """Self-made or supplied by others."""

    async def offer(self) -> Offer:
        """What to serve now. Raises KubeError, PkiError or OSError; then what was served before goes on."""
        ...
