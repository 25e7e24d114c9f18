"""One look at the regions of all containers: what is stale is pruned, what is dead is removed, the rest is reported.

Runs in the agent's input/output thread, a few containers at a time, so that a call of kubelet never waits for a whole
sweep.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from controllers.regions import locks, safefs, vmem
from controllers.regions.fresh import Outcome
from controllers.regions.ground import Ground, Outcomes
from controllers.regions.layout import Kind, NoDataError, Record, Records
from controllers.regions.names import ContainerId, Owner
from controllers.regions.processes import LivePids
from controllers.regions.safefs import Reason, RefusedError
from controllers.regions.view import Mapped, Trouble, View, view
from controllers.regions.vmem import Ledger
from controllers.regions.volumes import Volumes

# Seconds of a sweep, after which kubelet's calls and the watcher may come between. A way through the other thread costs
# a third of a look.
SLICE_S: Final = 0.005
_REASONS: Final = frozenset(Reason)


@dataclass(frozen=True, slots=True)
class Survey:
    """What holds for a whole sweep: who lives, what they map, which volumes show."""

    containers: tuple[ContainerId, ...]
    inhabitants: Mapping[ContainerId, tuple[int, ...]]
    mapped: Mapped
    published: Mapping[ContainerId, Owner]
    cleaned: Mapping[ContainerId, Outcomes]
    """What became of the region files of the dead."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One container after a sweep."""

    owner: Owner
    view: View
    pids: tuple[int, ...] = ()
    """Its processes as the host numbers them; empty: dead."""
    published: bool = False
    unused: bool = False
    """No process, no volume, and kubelet has no folder of the pod."""
    pruned: int = 0
    removed: tuple[Kind, ...] = ()
    refusals: tuple[Reason, ...] = ()
    lost_tries: int = 0

    @property
    def charged(self) -> int | None:
        """Bytes of all true records; None without a readable ledger."""
        if not isinstance(self.view.ledger, Ledger):
            return None
        return sum(records.total for records in self._devices())

    @property
    def records(self) -> int:
        """How many records the ledger has."""
        return sum(map(len, self._devices()))

    @property
    def corrupt(self) -> frozenset[tuple[ContainerId, Record]]:
        """Records with an impossible amount."""
        return frozenset((self.owner.id, record) for records in self._devices() for record in records.corrupt)

    def _devices(self) -> Collection[Records]:
        ledger = self.view.ledger
        return ledger.devices.values() if isinstance(ledger, Ledger) else ()


class Sweeper:
    """Looks, prunes, removes. `kubelet` is kubelet's root folder."""

    def __init__(self, ground: Ground, volumes: Volumes, kubelet: Path) -> None:
        self.ground = ground
        self._volumes = volumes
        self._kubelet = kubelet

    def survey(self) -> Survey:
        """Who is there, in one pass over the mount namespaces of the node; and all the dead are cleaned together."""
        containers = tuple(self.ground.containers())
        inhabitants = self.ground.inhabitants(containers)
        dead = [container for container in containers if container not in inhabitants]
        cleaned = self.ground.clean(dead, found_dead=True)
        published = {volume.owner.id: volume.owner for volume in self._volumes.published()}
        return Survey(containers, inhabitants, Mapped(inhabitants), published, cleaned)

    def look_at_some(self, containers: Sequence[ContainerId], survey: Survey) -> list[Finding]:
        """Look at the first of these: at one, and at more while there is time."""
        end = time.monotonic() + SLICE_S
        findings: list[Finding] = []
        for container in containers:
            findings.append(self.look(container, survey))
            if time.monotonic() >= end:  # a tenant's locks can make one look last 50 ms
                break
        return findings

    def look(self, container: ContainerId, survey: Survey) -> Finding:
        """Prune one container, and say what is there then."""
        seen = view(self.ground, container, survey.mapped)
        pids = survey.inhabitants.get(container, ())
        owner = survey.published.get(container)
        finding = Finding(
            owner or Owner(container),
            seen,
            pids=pids,
            published=owner is not None,
            unused=not pids and not owner and not (self._kubelet / "pods" / container.uid).exists(),
            refusals=_refusals(seen),
            lost_tries=_lost_tries(seen),
        )
        return self._pruned(finding, survey) if pids else _cleaned(finding, survey)

    def _pruned(self, finding: Finding, survey: Survey) -> Finding:
        seen = finding.view
        if not seen.suspects or not any(map(_exists, finding.pids)):
            return finding  # nothing to do, or the container ended meanwhile and is cleaned
        try:
            pruned = self._prune(finding.owner.id, seen)
        except (FileNotFoundError, NoDataError):
            return finding
        except RefusedError as refusal:
            return replace(finding, refusals=(*finding.refusals, refusal.reason))
        except locks.BusyError:
            return replace(finding, refusals=(*finding.refusals, Reason.LOCKED))
        return replace(finding, pruned=pruned, view=view(self.ground, finding.owner.id, survey.mapped))

    def _prune(self, container: ContainerId, seen: View) -> int:
        with (
            self.ground.leaf(container, Kind.VMEM) as leaf,
            leaf.regular(Kind.VMEM.file_name, size=Kind.VMEM.file_size, write=True) as fd,
        ):
            if safefs.file_id(fd) != seen.ledger_file:
                raise RefusedError(Reason.SWAPPED, "the ledger is another file now")
            live = LivePids(safefs.file_id(fd), uid=container.uid)
            return sum(vmem.prune(fd, device, live=live) for device in seen.suspects)


def _cleaned(finding: Finding, survey: Survey) -> Finding:
    outcomes = survey.cleaned.get(finding.owner.id, {})
    return replace(
        finding,
        removed=tuple(kind for kind, outcome in outcomes.items() if outcome is Outcome.REMOVED),
        refusals=tuple(o.reason for o in outcomes.values() if isinstance(o, RefusedError)),
    )


def _exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _refusals(seen: View) -> tuple[Reason, ...]:
    troubles = [region for region in (seen.ledger, seen.budget) if isinstance(region, Trouble)]
    return tuple(Reason(trouble.word) for trouble in troubles if trouble.word in _REASONS)


def _lost_tries(seen: View) -> int:
    return seen.ledger.lost_tries if isinstance(seen.ledger, Ledger) else 0
