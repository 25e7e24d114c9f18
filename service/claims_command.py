"""`tenure claims check`: says before a workload is installed why its claims would stay Pending."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from controllers.claims import reading
from controllers.claims.check import Subject, run
from controllers.claims.reading import BadManifestError, Manifests, NoDraError
from controllers.claims.report import Check, Report, Verdict
from service.asking import NoAccessError
from service.kube.client import KubeClient
from service.kube.errors import Forbidden, KubeError
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings
from service.tables import aligned, plain

# Of one manifest file; etcd holds no object above 1.5 MiB, and a file may hold the slices of a cluster.
MAX_FILE_BYTES = 64 * 1024 * 1024
_STYLES = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.UNKNOWN: "yellow"}


class BadFileError(typer.BadParameter):
    """A file that cannot be checked; the text is one sentence that says what to change."""


async def of_cluster(settings: KubeSettings, namespace: str, name: str) -> list[Report]:
    """One template that is applied. Raises NoAccessError, ConfigError."""
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    try:
        world = await reading.world(client)
        subject = await reading.template(client, namespace, name)
    except KubeError as error:
        raise NoAccessError(_sentence(error)) from None
    except NoDraError as error:
        raise NoAccessError(str(error)) from None
    finally:
        await client.close()
    return [run(subject, world)]


async def of_files(settings: KubeSettings, found: Manifests, *, namespace: str) -> list[Report]:
    """Templates of files on a cluster, by a dry run. Raises NoAccessError, ConfigError."""
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    try:
        world = await reading.world(client)
        subjects = [await _dry(client, subject, namespace) for subject in found.templates]
    except KubeError as error:
        raise NoAccessError(_sentence(error)) from None
    except NoDraError as error:
        raise NoAccessError(str(error)) from None
    finally:
        await client.close()
    return [run(subject, world) for subject in subjects]


async def _dry(client: KubeClient, subject: Subject, namespace: str) -> Subject:
    named = subject.template.metadata.namespace if subject.template else ""
    return await reading.dry_run(client, subject, named or namespace)


def offline(found: Manifests) -> list[Report]:
    """Templates of files against the slices and classes of the same files."""
    return [run(subject, found.world) for subject in found.templates]


def load(files: Sequence[Path], *, namespace: str) -> Manifests:
    """What the files hold together. Raises BadFileError."""
    texts = [_text(file) for file in files]
    try:
        found = reading.manifests("\n---\n".join(texts), namespace=namespace)
    except BadManifestError as error:
        raise BadFileError(str(error)) from None
    if not found.templates:
        shown = ", ".join(str(file) for file in files)
        raise BadFileError(f"there is no ResourceClaimTemplate in {shown}: name a file that has one")
    return found


def passed(reports: Sequence[Report]) -> bool:
    """True when every check of every template passed."""
    return all(report.verdict is Verdict.PASS for report in reports)


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadFileError(f"{file} is larger than 64 MiB: give the templates and slices only")
        return file.read_text()
    except OSError as error:
        raise BadFileError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadFileError(f"{file} is not UTF-8 text") from None


def _sentence(error: KubeError) -> str:
    if isinstance(error, Forbidden):
        return (
            "you may not read what a check needs: it takes the right to list resourceslices, deviceclasses, "
            f"resourceclaims and nodes, and to get or create resourceclaimtemplates ({error})"
        )
    return f"the API server could not be asked ({error}): see --config, or another kubeconfig"


def table(reports: Sequence[Report]) -> RenderableType:
    """For people: checks and findings, then what still fits."""
    parts: list[RenderableType] = []
    for report in reports:
        parts.append(plain(f"{report.template}: {report.verdict.value}", style=_STYLES[report.verdict]))
        parts.append(_checks(report.checks))
        if report.capacity:
            parts.append(_rooms(report))
        parts.append(plain(f"room for {report.pods} more pods"))
    return Group(*parts)


def _checks(checks: Sequence[Check]) -> Table:
    shown = aligned("CHECK", "VERDICT", "ABOUT", "WHAT", "WHAT TO DO")
    for check in checks:
        for row in _rows(check):
            shown.add_row(*row)
    return shown


def _rows(check: Check) -> Iterator[tuple[Text, ...]]:
    if check.verdict is Verdict.PASS:
        yield plain(check.name), plain(check.verdict.value, style=_STYLES[check.verdict])
    for finding in check.findings:
        label = "hint" if finding.verdict is Verdict.PASS else f"{finding.verdict.value} {finding.code.value}"
        yield (
            plain(check.name),
            plain(label, style=_STYLES[finding.verdict]),
            plain(finding.subject),
            plain(finding.sentence),
            plain(finding.advice),
        )


def _rooms(report: Report) -> Table:
    shown = aligned("NODE", "MORE PODS", "BY NUMA NODE", "ONE MORE FAILS ON")
    for room in report.capacity:
        numa = ", ".join(f"{node}: {pods}" for node, pods in room.by_numa.items())
        shown.add_row(
            plain(room.node),
            plain("unknown" if room.pods is None else room.pods),
            plain(numa),
            plain(room.reason),
        )
    return shown
