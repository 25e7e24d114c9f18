"""The lab's certificate authority, its certificates and kubeconfig files.

One authority per lab signs everything: servers (so that an answer proves whose server it is), clients of
the API server (common name = user, organisations = groups) and etcd's only client.
"""

import base64
import datetime as dt
import fcntl
import ipaddress
import json
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=30)  # Longer than any lab lives.
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, as PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Makes and keeps the credentials of one lab in one folder; what exists is used again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def certificate(self) -> Path:
        return self._folder / "ca.crt"

    @property
    def key(self) -> Path:
        return self._folder / "ca.key"

    @property
    def service_account_key(self) -> Path:
        return self._folder / "service-account.key"

    @property
    def serving(self) -> Pair:
        return self._pair("serving")

    def create(self, *, names: Sequence[str]) -> None:
        """Make the authority, the key of service-account tokens and one certificate for all servers."""
        self._folder.mkdir(parents=True, mode=0o700)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tenure-lab")])
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(ca=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_secret(self.key, _pem(key))
        write_secret(self.certificate, certificate.public_bytes(serialization.Encoding.PEM))
        write_secret(self.service_account_key, _pem(ec.generate_private_key(ec.SECP256R1())))
        self._issue("serving", common_name="tenure-lab-server", groups=(), names=names)

    def client(self, user: str, *, groups: Sequence[str] = ()) -> Pair:
        """The certificate by which the API server knows this user with exactly these groups."""
        file = "client-" + _file_name(user, groups)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(
                lock, fcntl.LOCK_EX
            )  # Or two callers would leave the key of one and the certificate of the other.
            if not self._pair(file).certificate.exists():
                self._issue(file, common_name=user, groups=groups, names=())
        return self._pair(file)

    def _pair(self, name: str) -> Pair:
        return Pair(certificate=self._folder / f"{name}.crt", key=self._folder / f"{name}.key")

    def _issue(self, file: str, *, common_name: str, groups: Sequence[str], names: Sequence[str]) -> None:
        issuer_key = serialization.load_pem_private_key(self.key.read_bytes(), password=None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        # Both usages for servers too: etcd's HTTP gateway is a client of etcd with the server's certificate.
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if names else [])
        builder = (
            _builder(subject, issuer.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if names:
            alternatives = x509.SubjectAlternativeName([_general_name(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        pair = self._pair(file)
        certificate = builder.sign(issuer_key, hashes.SHA256())
        write_secret(pair.key, _pem(key))
        write_secret(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM))


def kubeconfig(*, server: str, authority: Path, user: str, credential: Pair | str) -> str:
    """A kubeconfig file's text that depends on no other file. A credential is a pair or a bearer token."""
    if isinstance(credential, Pair):
        identity = {
            "client-certificate-data": _base64(credential.certificate),
            "client-key-data": _base64(credential.key),
        }
    else:
        identity = {"token": credential}
    cluster = {"server": server, "certificate-authority-data": _base64(authority)}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "lab", "cluster": cluster}],
            "users": [{"name": user, "user": identity}],
            "contexts": [{"name": "lab", "context": {"cluster": "lab", "user": user}}],
            "current-context": "lab",
        }
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALID)
    )


def _key_usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _file_name(user: str, groups: Sequence[str]) -> str:
    """Safe and different for every user and set of groups."""
    digest = hashes.Hash(hashes.SHA256())
    digest.update(json.dumps([user, *groups]).encode())
    readable = "".join(c if c.isalnum() else "-" for c in user)[:40]
    return f"{readable}-{digest.finalize().hex()[:8]}"


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,  # The only one kube-apiserver reads.
        serialization.NoEncryption(),
    )


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, and of which nobody ever reads half."""
    draft = path.with_suffix(f".new-{threading.get_native_id()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    draft.replace(path)
