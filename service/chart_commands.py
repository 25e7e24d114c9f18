"""The commands that the chart's Jobs and its test run. What they print is for the person who runs Helm."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from service import loop, settings
from service.asking import NoAccessError
from service.kube.errors import KubeError

FINDINGS: Final = 1

T = TypeVar("T")

Config = Annotated[Path | None, typer.Option(metavar="FILE", help="YAML file with settings.")]

commands = typer.Typer()


@commands.command("uninstall-check")
def uninstall_check(
    config: Config = None,
    *,
    warn_only: Annotated[bool, typer.Option("--warn-only", help="Name the pods, and exit 0.")] = False,
) -> int:
    """Name the pods that still need Tenure: with remote cards, at its gate, or with region volumes.

    Exit code 1 when there are any. The chart runs it before `helm uninstall` deletes anything.
    """
    from service import uninstall_check as checking  # noqa: PLC0415 - other commands need not load it

    found = _answer(checking.blockers(settings.load(config).kube))
    typer.echo(checking.report(found, warn_only=warn_only))
    return FINDINGS if found and not warn_only else 0


@commands.command("uninstall-clean")
def uninstall_clean(config: Config = None) -> int:
    """Take back what Tenure wrote on nodes and in objects of its own kinds. The chart runs it after an uninstall."""
    from service import uninstall_clean as cleaning  # noqa: PLC0415 - as above

    for line in _answer(cleaning.clean(settings.load(config))):
        typer.echo(line)
    return 0


@commands.command()
def selftest(
    config: Config = None,
    namespace: Annotated[
        str, typer.Option(metavar="NAME", help="Namespace for pods that are created as a dry run.")
    ] = "default",
) -> int:
    """Ask an installed Tenure whether it does its work. `helm test` runs it.

    Exit code 1 when something does not.
    """
    from service import selftest as asking  # noqa: PLC0415 - as above

    results = _answer(asking.selftest(settings.load(config), namespace=namespace))
    for result in results:
        typer.echo(f"FAILED: {result.question}: {result.fault}" if result.fault else f"ok: {result.question}")
    return FINDINGS if any(result.fault for result in results) else 0


def _answer(asking: Coroutine[Any, Any, T]) -> T:
    return loop.run(_told(asking))


async def _told(asking: Coroutine[Any, Any, T]) -> T:
    """What the API server refuses is told in one line."""
    try:
        return await asking
    except KubeError as error:
        raise NoAccessError(f"the API server could not be asked: {error}") from None
