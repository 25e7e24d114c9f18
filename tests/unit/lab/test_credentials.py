"""What the API server reads out of the lab's certificates."""

import stat
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import NameOID

from tests.lab.credentials import Authority, kubeconfig


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    made = Authority(tmp_path / "pki")
    made.create(names=["127.0.0.1", "kubernetes.default.svc"])
    return made


def values(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_user_and_groups_are_in_the_certificate(authority: Authority) -> None:
    certificate = load(authority.client("alice", groups=["dev", "ops"]).certificate)
    assert values(certificate, NameOID.COMMON_NAME) == ["alice"]
    assert values(certificate, NameOID.ORGANIZATION_NAME) == ["dev", "ops"]
    certificate.verify_directly_issued_by(load(authority.certificate))


def test_the_same_user_with_other_groups_is_another_certificate(authority: Authority) -> None:
    plain, grouped = authority.client("alice"), authority.client("alice", groups=["dev"])
    assert plain != grouped
    assert authority.client("alice") == plain


def test_names_that_are_no_file_names_are_kept_apart(authority: Authority) -> None:
    assert authority.client("a/b").certificate != authority.client("a:b").certificate
    assert authority.client("a", groups=["b", "c"]) != authority.client("a", groups=["b\0c"])


def test_servers_carry_their_names(authority: Authority) -> None:
    extension = load(authority.serving.certificate).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert extension.value.get_values_for_type(x509.DNSName) == ["kubernetes.default.svc"]
    assert [str(ip) for ip in extension.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]


def test_nobody_else_reads_a_key(authority: Authority) -> None:
    for key in (authority.key, authority.service_account_key, authority.client("a").key):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_a_kubeconfig_needs_no_other_file(authority: Authority) -> None:
    text = kubeconfig(
        server="https://127.0.0.1:1", authority=authority.certificate, user="bob", credential="a token"
    )
    config = yaml.safe_load(text)
    assert config["users"] == [{"name": "bob", "user": {"token": "a token"}}]
    assert config["clusters"][0]["cluster"].keys() == {"server", "certificate-authority-data"}
