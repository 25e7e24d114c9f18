"""A certificate that changes under a listener."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from certs import pki
from certs.pki import KeyPair, Usage
from certs.serving import LiveContext
from tests.unit.certs.tls import handshake, served, trusting

NOW = datetime.now(UTC)
HOST = "tenure.tenure-system.svc"
CA = pki.make_ca(lifetime=timedelta(days=1), now=NOW)
OTHER_CA = pki.make_ca(lifetime=timedelta(days=1), now=NOW)


def leaf(ca: KeyPair = CA, usage: Usage = Usage.SERVER) -> KeyPair:
    return pki.make_leaf(ca, names=[HOST], lifetime=timedelta(hours=1), now=NOW, usage=usage)


def der(pair: KeyPair) -> bytes:
    return pair.certificate.public_bytes(Encoding.DER)


def test_a_new_handshake_gets_the_new_certificate_and_an_old_connection_goes_on() -> None:
    live, old, new = LiveContext(), leaf(), leaf(OTHER_CA)
    live.serve(old)
    client, server = handshake(trusting(CA), live.context, host=HOST)
    live.serve(new)
    assert served(trusting(OTHER_CA), live.context, host=HOST) == der(new)
    server.write(b"still here")
    assert client.read() == b"still here"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(trusting(CA), live.context, host=HOST)


def test_a_certificate_that_openssl_refuses_leaves_the_former_one_in_use() -> None:
    live, good = LiveContext(), leaf()
    live.serve(good)
    with pytest.raises(ssl.SSLError):
        live.serve(KeyPair(leaf().certificate, leaf().key))
    assert served(trusting(CA), live.context, host=HOST) == der(good)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_key_leaves_no_file_and_no_descriptor_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    before = descriptors()
    LiveContext().serve(leaf())
    assert list(tmp_path.iterdir()) == []
    assert descriptors() == before


def test_a_client_of_old_tls_is_refused() -> None:
    live, client = LiveContext(), trusting(CA)
    live.serve(leaf())
    assert live.context.minimum_version is ssl.TLSVersion.TLSv1_2
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    session, _ = handshake(client, live.context, host=HOST)
    assert session.version() == "TLSv1.2"


class TestAContextThatDemandsAClientCertificate:
    @pytest.fixture(name="live")
    def _live(self) -> LiveContext:
        live = LiveContext(demand_client=True)
        live.serve(leaf())
        live.trust([CA.certificate])
        return live

    @staticmethod
    def client(pair: KeyPair | None, tmp_path: Path) -> ssl.SSLContext:
        context = trusting(CA)
        if pair is not None:
            (tmp_path / "pair.pem").write_bytes(pair.certificate_pem + pair.key_pem)
            context.load_cert_chain(tmp_path / "pair.pem")
        return context

    def test_lets_in_whom_our_ca_made_a_client(self, live: LiveContext, tmp_path: Path) -> None:
        client = self.client(leaf(usage=Usage.CLIENT), tmp_path)
        _, server = handshake(client, live.context, host=HOST)
        assert server.getpeercert(binary_form=True) is not None

    def test_learns_a_further_ca_while_it_serves(self, live: LiveContext, tmp_path: Path) -> None:
        client = self.client(leaf(OTHER_CA, Usage.CLIENT), tmp_path)
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            handshake(client, live.context, host=HOST)
        live.trust([CA.certificate, OTHER_CA.certificate])
        handshake(client, live.context, host=HOST)

    @pytest.mark.parametrize(
        ("pair", "reason"),
        [
            (None, "PEER_DID_NOT_RETURN_A_CERTIFICATE"),
            (leaf(OTHER_CA, Usage.CLIENT), "CERTIFICATE_VERIFY_FAILED"),
            (leaf(CA, Usage.SERVER), "CERTIFICATE_VERIFY_FAILED"),
        ],
        ids=["nobody", "a stranger", "another replica's server certificate"],
    )
    def test_refuses_everybody_else(
        self, live: LiveContext, tmp_path: Path, pair: KeyPair | None, reason: str
    ) -> None:
        with pytest.raises(ssl.SSLError, match=reason):
            handshake(self.client(pair, tmp_path), live.context, host=HOST)
