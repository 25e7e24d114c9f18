"""Scans of a host of the test's own."""

from controllers.occupancy.holders import Verdict
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.scanner import Scan, Scanner, ScanRules
from controllers.occupancy.sources.furiosa import FuriosaSource
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.look import Source
from controllers.occupancy.sources.rebellions import RebellionsSource
from controllers.occupancy.tools import Tools
from tests.unit.occupancy.ground import ACME, Ground


def generic(ground: Ground) -> GenericSource:
    return GenericSource(ground.host, ACME, deadline_s=5)


def furiosa(ground: Ground, *, deadline_s: float = 5) -> FuriosaSource:
    tools = Tools([ground.bin], deadline_s=deadline_s)
    return FuriosaSource(ground.host, tools, deadline_s=5)


def rebellions(ground: Ground) -> RebellionsSource:
    return RebellionsSource(ground.host, Tools([ground.bin], deadline_s=5), deadline_s=5)


def scanner(ground: Ground, *sources: Source, rules: ScanRules | None = None) -> Scanner:
    return Scanner(ground.host, sources or (generic(ground),), rules or ScanRules())


async def scan(ground: Ground, *sources: Source) -> Scan:
    return await scanner(ground, *sources).scan(PodIndex())


def by_card(found: Scan) -> dict[str, Verdict]:
    return {verdict.card.kernel_name: verdict for verdict in found.verdicts}
