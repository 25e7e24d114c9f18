from pathlib import Path

import certifi
import msgspec
import pytest
from kubernetes_asyncio.config import incluster_config

from service.kube import errors
from service.kube.credentials import Credentials
from service.settings import KubeSettings
from tests.unit.kube.peer import answer, client_of, kubeconfig, running


class Hand:
    """A clock that somebody moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


async def refused(settings: KubeSettings) -> str:
    with pytest.raises(errors.ConfigError) as caught:
        await Credentials(settings).endpoint()
    text = str(caught.value)
    assert "\n" not in text
    assert "NoneType" not in text
    assert "TENURE_KUBE__KUBECONFIG" in text
    return text


async def test_without_any_source_the_error_says_what_to_set(tmp_path: Path) -> None:
    assert "there is no kubeconfig" in await refused(KubeSettings())
    assert str(tmp_path / "none") in await refused(KubeSettings(kubeconfig=tmp_path / "none"))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "just text",
        "[]",
        "{unclosed",
        "{current-context: c}",
        "{current-context: c, contexts: [{name: c, context: {cluster: k}}], clusters: [{name: k, cluster: {}}]}",
        "{current-context: c, contexts: [{name: c, context: {cluster: other}}], clusters: []}",
    ],
)
async def test_a_file_that_is_no_kubeconfig_is_named(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken"
    file.write_text(content)
    assert str(file) in await refused(KubeSettings(kubeconfig=file))


async def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "https://127.0.0.1:1")
    content = msgspec.json.decode(file.read_bytes())
    content["clusters"][0]["cluster"]["certificate-authority-data"] = "bm90IGEgY2VydGlmaWNhdGU="
    file.write_bytes(msgspec.json.encode(content))
    assert str(file) in await refused(KubeSettings(kubeconfig=file))


async def test_the_environment_names_the_file_when_the_settings_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "https://example.invalid:6443")))
    assert (await Credentials(KubeSettings()).endpoint()).url == "https://example.invalid:6443"


async def test_a_token_file_is_read_again_after_a_minute(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    clock = Hand()
    file = kubeconfig(tmp_path, "https://127.0.0.1:1", {"tokenFile": str(token)})
    credentials = Credentials(KubeSettings(kubeconfig=file), clock=clock)
    await credentials.endpoint()
    token.write_text("new")
    assert await credentials.headers() == {"Authorization": "Bearer old"}
    clock.now += 61.0
    assert await credentials.headers() == {"Authorization": "Bearer new"}


async def test_a_token_file_that_vanished_leaves_the_token_that_we_have(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    clock = Hand()
    file = kubeconfig(tmp_path, "https://127.0.0.1:1", {"tokenFile": str(token)})
    credentials = Credentials(KubeSettings(kubeconfig=file), clock=clock)
    await credentials.endpoint()
    token.unlink()
    clock.now += 61.0
    assert await credentials.headers() == {"Authorization": "Bearer old"}


async def test_a_refused_token_is_read_again_at_once_and_the_call_repeated_once(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with running(answer(401), answer(201, "made"), answer(401)) as peer:
        file = kubeconfig(tmp_path, peer.url, {"tokenFile": str(token)})
        async with client_of(file) as client:
            token.write_text("new")
            assert await client.create("/x", {}) == b'"made"'
            with pytest.raises(errors.Unauthorized):
                await client.create("/x", {})
    sent = [line for head in peer.heads for line in head.split("\r\n") if line.startswith("Authorization")]
    assert sent == ["Authorization: Bearer old"] + ["Authorization: Bearer new"] * 3


async def test_a_refused_stream_reads_the_token_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    async with running(answer(401), answer(200, {})) as peer:
        file = kubeconfig(tmp_path, peer.url, {"tokenFile": str(token)})
        async with client_of(file) as client:
            token.write_text("new")
            async with client.stream(
                "/x", {}, connect_deadline=5, idle_deadline=5, total_deadline=5
            ) as lines:
                assert [line async for line in lines] == []
    assert "Authorization: Bearer new" in peer.heads[1]


async def test_a_credential_plugin_gives_the_token(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text(
        "#!/bin/sh\n"
        'echo \'{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",'
        ' "status": {"token": "from-plugin"}}\'\n'
    )
    plugin.chmod(0o755)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": str(plugin)}}
    credentials = Credentials(KubeSettings(kubeconfig=kubeconfig(tmp_path, "https://127.0.0.1:1", user)))
    await credentials.endpoint()
    assert await credentials.headers() == {"Authorization": "Bearer from-plugin"}


async def test_a_pod_uses_its_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    assert "the service account of this pod" in await refused(KubeSettings())


async def test_a_pod_calls_with_the_token_that_the_kubelet_renews(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("old")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", certifi.where())
    clock = Hand()
    credentials = Credentials(KubeSettings(), clock=clock)
    assert (await credentials.endpoint()).url == "https://[fd00::1]:443"
    token.write_text("new")
    clock.now += 61.0
    assert await credentials.headers() == {"Authorization": "Bearer new"}
