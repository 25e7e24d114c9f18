"""The lab for a person: `python -m tests.lab --help`."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.lab import machine
from tests.lab.build import BuildError
from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.lab.layout import DEFAULT_STATE
from tests.lab.progress import progress

WRONG_USE = 2

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="""A real Kubernetes cluster on this machine, for tests and for trying things out.

    etcd, API server, controllers and scheduler are started from programs that are built here once; with root
    rights and control groups also one real node (kubelet, containerd, kube-proxy). Several clusters can run
    side by side, each in its own --state folder; one of them has the node.

    A first look:

        python -m tests.lab up

        eval "$(python -m tests.lab env)"

        kubectl get nodes

        python -m tests.lab down
    """,
)

State = Annotated[Path, typer.Option(help="Folder of the cluster: its data, credentials and logs.")]


@app.command()
def up(
    state: State = DEFAULT_STATE,
    *,
    node: Annotated[bool, typer.Option(help="Start a real node too, if this machine can.")] = True,
    feature_gate: Annotated[
        list[str] | None, typer.Option(metavar="NAME=true|false", help="For every program. Repeatable.")
    ] = None,
    api_server_flag: Annotated[
        list[str] | None, typer.Option(metavar="--FLAG=VALUE", help="For the API server. Repeatable.")
    ] = None,
) -> None:
    """Start a cluster and wait until it works (about 10 s, with a node 15 s; the first time it is built)."""
    gates = _gates(feature_gate or ())
    lab = Lab(state, progress=progress)
    if node and machine.missing() is None and (taken := machine.taken()):
        raise LabError(f"{taken}, or start this one with --no-node")
    lab.up(node=node, feature_gates=gates, api_server_flags=api_server_flag or ())
    if lab.node_missing and node:
        typer.echo(f"There is no real node: {lab.node_missing}.", err=True)
    typer.echo(f"The cluster is at {lab.server}. Use it with:  {_env_command(lab)}")


@app.command()
def down(state: State = DEFAULT_STATE) -> None:
    """Stop a cluster and remove it from this machine; only its logs stay. Safe to repeat, after crashes too."""
    lab = Lab(state)
    with progress("Removing the cluster"):
        lab.down()
    if lab.logs.exists():
        typer.echo(f"Its logs are in {lab.logs}.")


@app.command()
def status(state: State = DEFAULT_STATE) -> None:
    """What runs. Exit code 0: all of it; 1: something does not; 2: there is no cluster."""
    lab = Lab(state)
    server, missing = lab.server, lab.node_missing
    table = Table("component", "state", box=None)
    states = lab.components.states()
    for name, text in states.items():
        table.add_row(name, text)
    Console().print(table)
    typer.echo(f"API server: {server}")
    typer.echo(f"Real node: {f'none, {missing}' if missing else f'{lab.node_name} ({lab.node_ip})'}")
    typer.echo(f"Logs: {lab.logs}")
    if not all(text.startswith("running") for text in states.values()):
        raise typer.Exit(1)


@app.command()
def env(state: State = DEFAULT_STATE) -> None:
    """Print what a shell must set to use the cluster: eval "$(python -m tests.lab env)"."""
    lab = Lab(state)
    typer.echo(f"export KUBECONFIG={shlex.quote(str(lab.kubeconfig))}")
    typer.echo(f"export TENURE_LAB={shlex.quote(str(lab.state))}")
    typer.echo(f"export PATH={shlex.quote(str(lab.commands))}:$PATH")


@app.command()
def logs(
    component: Annotated[str | None, typer.Argument(help="Which one; without it, all are listed.")] = None,
    state: State = DEFAULT_STATE,
    lines: Annotated[int, typer.Option(help="How many of the last lines.", min=1)] = 50,
    *,
    follow: Annotated[bool, typer.Option(help="Go on as the log grows.")] = False,
) -> None:
    """Show the log of one component (also after `down`)."""
    lab = Lab(state)
    names = sorted(path.stem for path in lab.logs.glob("*.log"))
    if component is None:
        typer.echo("\n".join(names) or f"There are no logs in {lab.logs}.")
        return
    if component not in names:
        raise LabError(f"there is no log of {component}; there are: {', '.join(names) or 'none'}")
    command = ["tail", f"--lines={lines}", *(["--follow"] if follow else []), str(lab.log(component))]
    os.execvp(command[0], command)  # noqa: S606 - tail takes this process over, with its signals and its exit code.


def _gates(words: Sequence[str]) -> dict[str, bool]:
    gates = {}
    for word in words:
        name, _, value = word.partition("=")
        if value not in {"true", "false"}:
            raise LabError(f"--feature-gate {word} is not NAME=true or NAME=false")
        gates[name] = value == "true"
    return gates


def _env_command(lab: Lab) -> str:
    default = lab.state == DEFAULT_STATE
    words = ["python", "-m", "tests.lab", "env"] + ([] if default else ["--state", str(lab.state)])
    return f'eval "$({shlex.join(words)})"'


def main() -> None:
    """Run the command line; what a person can change is one sentence and exit code 2."""
    try:
        app(prog_name="python -m tests.lab")
    except (LabError, BuildError) as error:
        typer.echo(str(error), err=True)
        sys.exit(WRONG_USE)


if __name__ == "__main__":
    main()
