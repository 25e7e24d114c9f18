import io
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest
import structlog
import yaml

from service import api, cli
from service.asking import _sentence
from service.kube.errors import Forbidden, KubeError, NotFound, Unavailable, Unreachable

FREE = api.Card(
    id="GPU-1", index=0, type="NVIDIA H200", memory_mib=143771, state=api.CardState.FREE, offered=True, numa=0
)
HELD = msgspec.structs.replace(
    FREE,
    id="GPU-2",
    state=api.CardState.BOUND,
    holder=api.Holder("team-a", "train-0", "Bound", "2026-01-01T00:00:00Z"),
)
CORDONED = msgspec.structs.replace(FREE, id="GPU-3", offered=False, reasons=("Cordoned",))


def servers(*cards: api.Card, ready: bool = True) -> api.Servers:
    return api.Servers((api.Server("gpu-a", "10.0.0.1:14833", ready, cards),))


def explanation(state: api.PodState, **fields: object) -> api.Explanation:
    plain = api.Explanation(pod="team-a/train-0", state=state, sentence="waits for 1 card on one server")
    return msgspec.structs.replace(plain, **fields)


@contextmanager
def answering(body: bytes, status: int = 200) -> Iterator[str]:
    """An ops listener's URL; whatever is asked, this is the answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tenure(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Carry out one command: exit code, standard output, standard error."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def tenure(*arguments: str) -> tuple[int, str, str]:
        code = cli.run(arguments)
        out, err = capsys.readouterr()
        return code, out, err.lstrip()

    return tenure


@pytest.fixture
def ask(tenure: Ask) -> Ask:
    """The same, with an answer for the command to show."""

    def ask(answer: api.Answer, *arguments: str) -> tuple[int, str, str]:
        with answering(msgspec.json.encode(answer)) as url:
            return tenure(*arguments, "--server", url)

    return ask


# What the pool looks like


def test_pool_shows_a_line_for_each_card_and_who_has_it(ask: Ask) -> None:
    code, out, _ = ask(servers(FREE, HELD), "pool")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["SERVER", "ENDPOINT", "CARD"]
    free = next(line for line in lines if "GPU-1" in line)
    held = next(line for line in lines if "GPU-2" in line)
    assert free.split() == ["gpu-a", "10.0.0.1:14833", "GPU-1", "NVIDIA", "H200", "143771", "0", "free"]
    assert held.split()[-2:] == ["bound", "team-a/train-0"]
    assert lines[-1] == "1 server, 2 cards: 1 free, 1 held"


@pytest.mark.parametrize(
    "answer",
    [
        api.Servers(()),
        servers(),
        servers(FREE, ready=False),
        servers(FREE, CORDONED),
        servers(msgspec.structs.replace(FREE, reasons=("OccupancyUnknown",))),
    ],
    ids=["no server", "no card", "not ready", "not offered", "flagged"],
)
def test_pool_ends_with_1_when_something_cannot_be_used_as_it_should(ask: Ask, answer: api.Servers) -> None:
    assert ask(answer, "pool")[0] == 1


def test_pool_says_why_a_card_is_not_offered(ask: Ask) -> None:
    _, out, _ = ask(servers(CORDONED), "pool")
    assert out.splitlines()[1].split()[-1] == "Cordoned"


@pytest.mark.parametrize(
    ("output", "read"), [("json", json.loads), ("yaml", yaml.safe_load)], ids=["json", "yaml"]
)
def test_the_whole_answer_comes_as_json_and_yaml(
    ask: Ask, output: str, read: Callable[[str], object]
) -> None:
    answer = servers(FREE, HELD)
    _, out, _ = ask(answer, "pool", "--output", output)
    assert msgspec.convert(read(out), api.Servers) == answer


def test_a_name_cannot_act_on_the_terminal_or_as_markup(ask: Ask) -> None:
    card = msgspec.structs.replace(FREE, type="\x1b[2J[red]evil[/red]", id="GPU\r-9")
    _, out, _ = ask(servers(card), "pool")
    assert "\x1b" not in out
    assert "\r" not in out
    assert "[red]evil[/red]" in out


def test_fields_of_a_newer_server_are_skipped(tenure: Ask) -> None:
    body = msgspec.to_builtins(servers(FREE)) | {"future": 1}
    with answering(msgspec.json.encode(body)) as url:
        assert tenure("pool", "--server", url)[0] == 0


# Why a pod waits


@pytest.mark.parametrize(
    ("state", "code"),
    [
        (api.PodState.WAITING, 1),
        (api.PodState.PROMISED, 0),
        (api.PodState.PLACED, 0),
        (api.PodState.NOT_OURS, 0),
        (api.PodState.UNKNOWN, 2),
    ],
)
def test_the_exit_code_of_explain_tells_the_state(ask: Ask, state: api.PodState, code: int) -> None:
    assert ask(explanation(state), "explain", "team-a/train-0")[0] == code


def test_explain_gives_the_sentence_the_place_the_gates_and_each_server(ask: Ask) -> None:
    answer = explanation(
        api.PodState.WAITING,
        place=3,
        gates=("kueue.x-k8s.io/admission",),
        servers=(api.Chance("gpu-a", 1, "1 of 2 cards are free, 2 are needed"),),
    )
    _, out, _ = ask(answer, "explain", "team-a/train-0")
    assert out.splitlines()[0] == "team-a/train-0: waits for 1 card on one server"
    assert "place in the queue: 3" in out
    assert "kueue.x-k8s.io/admission" in out
    assert "1 of 2 cards are free, 2 are needed" in out


def test_explain_shows_the_cards_of_a_pod_that_has_them(ask: Ask) -> None:
    given = api.GivenCard(server="gpu-a", id="GPU-2", index=1, type="NVIDIA H200", memory_mib=143771)
    _, out, _ = ask(explanation(api.PodState.PLACED, cards=(given,)), "explain", "team-a/train-0")
    assert out.splitlines()[-1].split() == ["gpu-a", "GPU-2", "NVIDIA", "H200", "143771"]


# Wrong use and no access


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["serv"], "No such command 'serv'"),
        (["serve", "--confg", "x"], "No such option: --confg"),
        (["serve", "--log-format", "xml"], "'xml' is not one of 'json', 'console'"),
        (["serve", "--config", "/nowhere.yaml"], "/nowhere.yaml cannot be read"),
        (["explain", "train-0"], "'train-0' is not NAMESPACE/POD"),
        (["explain", "a/b/c"], "'a/b/c' is not NAMESPACE/POD"),
        (["explain", "/b"], "'/b' is not NAMESPACE/POD"),
        (["explain"], "Missing argument"),
        (["pool", "--server", "localhost"], "is not a URL"),
        (["pool", "--output", "xml"], "'xml' is not one of"),
        (["pool"], "there is no kubeconfig"),
        (["serve"], "there is no kubeconfig"),
    ],
)
def test_misuse_is_one_sentence_and_exit_code_2(tenure: Ask, arguments: list[str], sentence: str) -> None:
    code, out, err = tenure(*arguments)
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("tenure: ")
    assert sentence in line


@pytest.mark.parametrize("text", ["", "- not\n- a kubeconfig\n", "\x00", "apiVersion: v1\nkind: Config\n"])
def test_a_kubeconfig_that_is_none_is_one_line(
    tenure: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    code, _, err = tenure("serve")
    assert code == 2
    (line,) = err.splitlines()
    assert str(path) in line


def test_a_server_that_is_not_there_is_one_sentence(tenure: Ask) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    code, _, err = tenure("pool", "--server", url)
    assert code == 2
    assert f"no answer from {url}" in err


def test_a_server_that_is_not_ready_says_why(tenure: Ask) -> None:
    body = msgspec.json.encode(api.Failure("pods are not listed yet"))
    with answering(body, status=503) as url:
        code, _, err = tenure("pool", "--server", url)
    assert code == 2
    assert "answered 503: pods are not listed yet" in err


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"servers": 3}'])
def test_another_server_is_recognised_as_such(tenure: Ask, body: bytes) -> None:
    with answering(body) as url:
        code, _, err = tenure("pool", "--server", url)
    assert code == 2
    assert "not Tenure's ops listener" in err


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            NotFound(404, reason="NotFound", message="services"),
            "there is no service tenure:ops in namespace ns",
        ),
        (Forbidden(403, reason="Forbidden", message="no"), "services/proxy"),
        (Unavailable(503, reason="ServiceUnavailable", message="no endpoints"), "is a pod of it ready"),
        (Unreachable("connection refused"), "connection refused"),
    ],
)
def test_no_access_through_the_api_server_says_what_to_do(error: KubeError, words: str) -> None:
    assert words in _sentence(error, namespace="ns", service="tenure:ops")


# Help


@pytest.mark.parametrize("name", ["serve", "node", "holders", "regions", "pool", "explain"])
def test_help_teaches(tenure: Ask, name: str) -> None:
    code, out, _ = tenure(name, "--help")
    assert code == 0
    assert "--config" in out
    assert name in tenure("--help")[1]


def test_no_command_shows_what_there_is(tenure: Ask) -> None:
    code, out, err = tenure()
    assert code == 2
    assert "explain" in out
    assert err == ""


def test_version(tenure: Ask) -> None:
    assert tenure("--version")[:2] == (0, "0.1.0\n")


def test_reading_commands_leave_the_log_alone(ask: Ask, log_stream: io.StringIO) -> None:
    structlog.get_logger().info("still here")
    ask(servers(FREE), "pool")
    assert len(log_stream.getvalue().splitlines()) == 1
