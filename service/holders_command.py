"""`tenure holders` and `tenure node --once --dry-run`: who holds each card, and what the agent would write of it."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from rich.console import Group, RenderableType
from rich.text import Text

from controllers.occupancy import holdings
from controllers.occupancy.holdings import HEADER, Holdings, Preview
from service import tables
from service.asking import NoAccessError
from service.kube.client import KubeClient
from service.kube.errors import ConfigError, Forbidden, KubeError
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings, Settings

_STYLES = {"free": "green", "k8s": "cyan", "host": "red", "unknown": "yellow"}


async def holders(settings: Settings, *, here: bool | None = None) -> Holdings:
    """Who holds each card of this machine (`here`) or of the cluster. Raises NoAccessError, ConfigError.

    None: this machine in the agent's container, which has its node's name, and where no API server is known.
    """
    if here if here is not None else bool(settings.node.name):
        return await _of_machine(settings)
    try:
        async with _connected(settings.kube) as client:
            return await holdings.of_cluster(settings, client)
    except ConfigError:
        if here is False:
            raise
        return await _of_machine(settings)
    except KubeError as error:
        raise NoAccessError(_sentence(error, "to list acceleratorprofiles", "--here")) from None


async def preview(settings: Settings) -> Preview:
    """What the agent would write after one scan. Raises NoAccessError, ConfigError."""
    try:
        async with _connected(settings.kube) as client:
            return await holdings.preview(settings, client)
    except KubeError as error:
        raise NoAccessError(_sentence(error, "to list pods and to get the node")) from None


async def _of_machine(settings: Settings) -> Holdings:
    """A scan. It says who holds a card also when nobody can say which pod that is."""
    try:
        async with _connected(settings.kube) as client:
            return await holdings.of_node(settings, client)
    except (ConfigError, KubeError) as error:
        return await holdings.of_node(settings, unnamed=str(error))


@asynccontextmanager
async def _connected(settings: KubeSettings) -> AsyncIterator[KubeClient]:
    client = await KubeClient.connect(settings, metrics=KubeMetrics(MetricSet()))
    try:
        yield client
    finally:
        await client.close()


def _sentence(error: KubeError, rights: str, instead: str = "") -> str:
    advice = f", or use {instead} on the node" if instead else ""
    if isinstance(error, Forbidden):
        return f"you may not ask the API server: it takes the right {rights}{advice} ({error})"
    return f"the API server could not be asked ({error}): see --config, or another kubeconfig{advice}"


def table(found: Holdings) -> RenderableType:
    """One line per card, then what is known of all of them."""
    return Group(*_parts(found))


def _parts(found: Holdings) -> Iterator[RenderableType]:
    if found.problem:
        yield tables.plain(found.problem, style="red")
    if found.cards:
        state = HEADER.index("STATE")
        cells = (
            [
                tables.plain(cell, style=_STYLES.get(cell, "") if at == state else "")
                for at, cell in enumerate(row)
            ]
            for row in holdings.rows(found)
        )
        yield tables.filled(HEADER, cells)
        states = Counter(card.state for card in found.cards)
        told = ", ".join(f"{states[state]} {state}" for state in _STYLES if states[state])
        yield Text(f"{tables.count(found.cards, 'card')}: {told}")
    elif not found.problem:
        yield Text("There is no card here.")
    if found.unnamed:
        yield tables.plain(
            f"The API server was not asked, so pods have no names: {found.unnamed}", style="yellow"
        )


def lines(seen: Preview) -> RenderableType:
    """A line for each thing that would be written."""
    return Group(*(tables.plain(line) for line in holdings.lines(seen)))
