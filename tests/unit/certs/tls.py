"""TLS between two ends in memory: real OpenSSL on both sides, no sockets. Its time of day is the real one."""

import ssl

from certs.pki import KeyPair, pem


def trusting(*authorities: KeyPair) -> ssl.SSLContext:
    """A client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=pem(*(each.certificate for each in authorities)).decode())
    return context


def handshake(
    client_context: ssl.SSLContext, server_context: ssl.SSLContext, *, host: str
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends, content with each other, after the client has read one word. Raises what one objects to."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    # A server refuses a client's certificate only after that client's handshake is over (TLS 1.3).
    server.write(b"word")
    assert client.read() == b"word"
    return client, server


def served(client_context: ssl.SSLContext, server_context: ssl.SSLContext, *, host: str) -> bytes:
    """The server's certificate, encoded, as a new client gets it."""
    client, _ = handshake(client_context, server_context, host=host)
    return client.getpeercert(binary_form=True) or b""
