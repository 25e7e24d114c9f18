"""Build the scanner of this node from the settings."""

import re

from controllers.occupancy.kin import MONITORS
from controllers.occupancy.scanner import Scanner, ScanRules
from controllers.occupancy.sources.furiosa import FuriosaSource
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.sources.host import Host
from controllers.occupancy.sources.nvidia import NvidiaSource
from controllers.occupancy.sources.rebellions import RebellionsSource
from controllers.occupancy.tools import Tools
from controllers.occupancy.vendors.generic import BUILT_IN, CardClass
from service.settings import OccupancySettings


def scanner_of(settings: OccupancySettings) -> Scanner:
    """A scanner with every vendor that Tenure knows; the user's kinds of cards come before the built-in ones."""
    host = Host(settings.proc, settings.sys, settings.dev)
    tools = Tools(settings.tool_folders, deadline_s=settings.tool_deadline_s)
    deadline = settings.tool_deadline_s
    optional = settings.optional_tools
    own = (CardClass(c.vendor, re.compile(c.nodes), frozenset(c.drivers)) for c in settings.cards)
    sources = (
        NvidiaSource(host, tools, deadline_s=deadline),
        FuriosaSource(host, tools, deadline_s=deadline, optional_tools=optional),
        RebellionsSource(host, tools, deadline_s=deadline, optional_tools=optional),
        GenericSource(host, (*own, *BUILT_IN), deadline_s=deadline),
    )
    return Scanner(host, sources, _rules(settings))


def _rules(settings: OccupancySettings) -> ScanRules:
    return ScanRules(
        walk_deadline_s=settings.walk_deadline_s,
        monitor_hold_s=settings.monitor_hold_s,
        lupine=settings.lupine_executable,
        monitors=(*MONITORS, *settings.monitors),
        assume_host_pid=settings.assume_host_pid,
    )
