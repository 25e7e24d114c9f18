"""The command line. Exit codes: 0 fine, 1 findings or a fault while serving, 2 wrong use or no access."""

import importlib.metadata
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
import yaml
from rich.console import Console, RenderableType

from service import api, chart_commands, loop, settings, tables
from service.asking import AtUrl, NoAccessError, Source, ThroughApiServer, ask
from service.http import ListenError
from service.kube.errors import ConfigError
from service.settings import Settings, SettingsError

WRONG_USE = 2
FINDINGS = 1

T = TypeVar("T")

EXPECTED = (SettingsError, ConfigError, ListenError, NoAccessError)


class LogFormat(StrEnum):
    """How log lines look."""

    JSON = "json"
    CONSOLE = "console"


class Output(StrEnum):
    """How answers look."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Config = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="YAML file with settings; TENURE_SECTION__FIELD in the environment is stronger."
    ),
]
Format = Annotated[
    LogFormat | None, typer.Option(help="JSON lines, or text for people; default: the settings' log.format.")
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Ops listener to ask, such as http://localhost:8080; default: the service proxy of the API server.",
    ),
]
Namespace = Annotated[
    str | None, typer.Option(metavar="NAME", help="Namespace that Tenure runs in; default: kube.namespace.")
]
Shape = Annotated[Output, typer.Option("--output", "-o", help="A table for people, or the whole answer.")]

app = typer.Typer(
    name="tenure",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Tenure keeps the truth about who holds every accelerator card in a Kubernetes cluster.",
    epilog="Exit codes: 0 fine, 1 something was found, 2 wrong use or no access.",
)


def _version(asked: bool) -> None:  # noqa: FBT001 - typer calls it with the flag
    if asked:
        typer.echo(importlib.metadata.version("tenure"))
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


@app.command()
def serve(config: Config = None, log_format: Format = None) -> int:
    """Run the server: webhook, scheduler extender and cluster controllers.

    It runs until SIGTERM, then goes on answering for the drain time (http.drain_s) and ends with exit code 0.
    A second signal ends the drain at once.
    """
    from service.app import serve as run_server  # noqa: PLC0415 - a reading command need not load all of it

    chosen = _settings(config, log_format=log_format)
    return loop.run(run_server(chosen))


@app.command()
def node(
    config: Config = None,
    log_format: Format = None,
    *,
    once: Annotated[bool, typer.Option("--once", help="Scan once and end; goes with --dry-run.")] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print the keys, label and cordon that it would write; write nothing."
        ),
    ] = False,
    output: Shape = Output.TABLE,
) -> int:
    """Run the agent of one node: card scan, vGPU regions, metrics.

    With --once --dry-run: what it would write of one scan, and exit code 1 when a card is not known.
    """
    from service import holders_command  # noqa: PLC0415 - a reading command need not load all of it
    from service.app import node as run_agent  # noqa: PLC0415 - as above

    chosen = _settings(config, log_format=log_format)
    if once and dry_run:
        seen = _answer(holders_command.preview(chosen), "Scanning this machine")
        _dump(seen, output, lambda: holders_command.lines(seen))
        return FINDINGS if seen.has_findings else 0
    if once or dry_run or output is not Output.TABLE:
        raise typer.BadParameter("--once, --dry-run and --output go together: give --once --dry-run")
    return loop.run(run_agent(chosen))


@app.command()
def holders(
    *,
    here: Annotated[
        bool | None,
        typer.Option(
            "--here/--cluster",
            help="Scan this machine, as root; or read what the agents of all nodes published.",
            show_default=False,
        ),
    ] = None,
    config: Config = None,
    output: Shape = Output.TABLE,
) -> int:
    """Show who holds each card: pods, processes of the host, or nobody.

    In an agent's container, and where no API server is known, it means this machine; else the cluster.

    Exit code 1 when a card is held by the host or not known.
    """
    from service import holders_command  # noqa: PLC0415 - as above

    found = _answer(holders_command.holders(settings.load(config), here=here), "Looking who holds each card")
    _dump(found, output, lambda: holders_command.table(found))
    return FINDINGS if found.has_findings else 0


@app.command()
def regions(
    path: Annotated[
        Path | None,
        typer.Argument(
            help="A folder with regions of containers, of one container, or a region file that was copied; "
            "default: regions.root of this node."
        ),
    ] = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again each second, until Ctrl-C.")
    ] = False,
    config: Config = None,
    output: Shape = Output.TABLE,
) -> int:
    """Show what the vGPU regions of containers say: memory by process, SM budget, and which records are stale.

    Nothing is changed. Exit code 1 when a record is stale or corrupt, or a region cannot be read.
    """
    from service import regions_command  # noqa: PLC0415 - as above

    chosen = settings.load(config).regions
    if watch and output is not Output.TABLE:
        raise typer.BadParameter("--watch shows a table: leave --output away")
    if watch:
        found = regions_command.watch(lambda: regions_command.rows(chosen, path))
    else:
        with _waiting("Reading regions"):
            found = regions_command.rows(chosen, path)
        _dump(found, output, lambda: regions_command.table(found))
    return 0 if regions_command.passed(found) else FINDINGS


@app.command()
def pool(
    config: Config = None, server: Server = None, namespace: Namespace = None, output: Shape = Output.TABLE
) -> int:
    """Show every server, its cards, and who holds them.

    Exit code 1 when there is no server, or a server or card that cannot be used as it should.
    """
    answer = _answer(
        ask(_source(config, server=server, namespace=namespace), api.SERVERS, api.Servers),
        "Asking for the pool",
    )
    _print(answer, output)
    return FINDINGS if _has_findings(answer) else 0


@app.command()
def explain(
    pod: Annotated[str, typer.Argument(metavar="NAMESPACE/POD", help="For example team-a/train-0.")],
    config: Config = None,
    server: Server = None,
    namespace: Namespace = None,
    output: Shape = Output.TABLE,
) -> int:
    """Say why a pod waits, or which cards it has.

    Exit code 1 while it waits for cards, 2 when the server knows no such pod.
    """
    where, name = _split(pod, "NAMESPACE/POD", "team-a/train-0")
    path = api.EXPLAIN.format(namespace=where, pod=name)
    answer = _answer(
        ask(_source(config, server=server, namespace=namespace), path, api.Explanation), f"Asking for {pod}"
    )
    _print(answer, output)
    return {api.PodState.WAITING: FINDINGS, api.PodState.UNKNOWN: WRONG_USE}.get(answer.state, 0)


app.add_typer(chart_commands.commands)
claims = typer.Typer(no_args_is_help=True, help="Device claims (Dynamic Resource Allocation).")
app.add_typer(claims, name="claims")


@claims.command()
def check(
    template: Annotated[
        str | None, typer.Argument(metavar="NAMESPACE/TEMPLATE", help="For example team-a/npu-rdma.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file", "-f", metavar="FILE", help="Check the templates of this file; may be repeated."
        ),
    ] = None,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace of templates in files that name none.")
    ] = "default",
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no cluster: slices and classes are in the files too.")
    ] = False,
    config: Config = None,
    output: Shape = Output.TABLE,
) -> int:
    """Say whether a ResourceClaimTemplate can be served, by which nodes, and what stands in its way.

    Exit code 1 when a check failed or could not tell.
    """
    from service import claims_command  # noqa: PLC0415 - a reading command need not load all of it

    if (template is None) == (not file):
        raise typer.BadParameter("give either NAMESPACE/TEMPLATE, or a file with -f")
    if offline and template is not None:
        raise typer.BadParameter("--offline needs files: give them with -f")
    kube = settings.load(config).kube
    if template is not None:
        where, name = _split(template, "NAMESPACE/TEMPLATE", "team-a/npu-rdma")
        reports = _answer(claims_command.of_cluster(kube, where, name), f"Checking {template}")
    else:
        found = claims_command.load(file or [], namespace=namespace)
        if offline:
            reports = claims_command.offline(found)
        else:
            asking = claims_command.of_files(kube, found, namespace=namespace)
            reports = _answer(asking, "Checking templates")
    _dump(reports[0] if template else reports, output, lambda: claims_command.table(reports))
    return 0 if claims_command.passed(reports) else FINDINGS


def _settings(config: Path | None, *, log_format: LogFormat | None = None) -> Settings:
    found = settings.load(config)
    if log_format is None:
        return found
    return found.model_copy(update={"log": found.log.model_copy(update={"format": log_format.value})})


def _source(config: Path | None, *, server: str | None, namespace: str | None) -> Source:
    if server is not None:
        return AtUrl(server)
    kube = settings.load(config).kube
    return ThroughApiServer(kube.model_copy(update={"namespace": namespace}) if namespace else kube)


def _split(text: str, shape: str, example: str) -> tuple[str, str]:
    where, _, name = text.partition("/")
    if not where or not name or "/" in name:
        raise typer.BadParameter(f"{text!r} is not {shape}, such as {example}")
    return where, name


def _answer(asking: Coroutine[Any, Any, T], what: str) -> T:
    with _waiting(what):
        return loop.run(asking)


def _waiting(what: str) -> AbstractContextManager[object]:
    """A spinner for who watches; a file or a pipe gets nothing."""
    console = Console(stderr=True)
    return console.status(what) if console.is_terminal else nullcontext()


def _print(answer: api.Servers | api.Explanation, output: Output) -> None:
    def table() -> RenderableType:
        return tables.pool(answer) if isinstance(answer, api.Servers) else tables.explanation(answer)

    _dump(answer, output, table)


def _dump(answer: object, output: Output, table: Callable[[], RenderableType]) -> None:
    match output:
        case Output.JSON:
            typer.echo(msgspec.json.format(msgspec.json.encode(answer)))
        case Output.YAML:
            typer.echo(yaml.safe_dump(msgspec.to_builtins(answer), sort_keys=False), nl=False)
        case Output.TABLE:
            tables.show(table())


def _has_findings(answer: api.Servers) -> bool:
    return not answer.servers or any(
        not server.ready or not server.cards or any(card.reasons or not card.offered for card in server.cards)
        for server in answer.servers
    )


def run(arguments: Sequence[str]) -> int:
    """Carry out one command; what is wrong with its use goes to standard error, a sentence per line."""
    try:
        return app(list(arguments), prog_name="tenure", standalone_mode=False) or 0
    except EXPECTED as error:
        return _wrong(str(error))
    except typer.TyperException as error:
        sentence = error.format_message()  # empty when there was no command: the help is printed then
        return _wrong(f"{sentence} (see tenure --help)" if sentence else "")


def _wrong(text: str) -> int:
    for line in text.splitlines():
        typer.echo(f"tenure: {line}", err=True)
    return WRONG_USE


def main() -> None:
    """Entry point of the program."""
    sys.exit(run(sys.argv[1:]))
