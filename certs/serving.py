"""A TLS server context whose certificate changes while connections come in."""

import errno
import os
import ssl
from collections.abc import Collection
from typing import Final

from cryptography import x509

from certs.pki import KeyPair, pem

# MFD_NOEXEC_SEAL of memfd_create(2): hardened systems (vm.memfd_noexec=2) demand it, Linux before 6.3 refuses it.
_NOEXEC_SEAL: Final = 0x0008


class LiveContext:
    """Serves the pair given last to every new handshake; connections that exist go on.

    Only with `demand_client` a client must show a certificate that leads to one of the CAs given to `trust`.
    """

    def __init__(self, *, demand_client: bool = False) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._demand_client = demand_client
        if demand_client:
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._trusted: set[x509.Certificate] = set()

    def serve(self, pair: KeyPair) -> None:
        """Use the pair from the next handshake on. Raises ssl.SSLError when OpenSSL refuses it.

        OpenSSL takes keys from files only. This one lives in memory, has no name, and is gone afterwards, so the key
        never touches a disk, a read-only root needs no folder for it, and the event loop waits for nothing.
        Certificate and key change within one call on the loop, hence no handshake sees half of them.
        """
        descriptor = _nameless_file()
        try:
            os.set_blocking(descriptor, False)
            os.write(descriptor, pair.certificate_pem + pair.key_pem)
            # First into a context that nobody uses: one that OpenSSL refuses must not leave ours half changed.
            for context in (ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), self.context):
                context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)

    def trust(self, authorities: Collection[x509.Certificate]) -> None:
        """Accept clients of these CAs too. OpenSSL cannot forget one again before the process ends."""
        missing = set(authorities) - self._trusted
        if self._demand_client and missing:
            self.context.load_verify_locations(cadata=pem(*missing).decode())
            self._trusted |= missing


def _nameless_file() -> int:
    """A descriptor of memory."""
    try:
        return os.memfd_create("tls", os.MFD_CLOEXEC | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create("tls", os.MFD_CLOEXEC)
