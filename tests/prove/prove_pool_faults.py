"""The proof of the pool is able to fail: `make prove ONLY=pool_seeded_faults`.

Each trial takes one safeguard out of a copy of the sources and lets the random worlds loose on it, until they find
what the safeguard was for.
"""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.prove.proofs import Run, proof

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("certs", "controllers", "service", "tests", "webhook")
POOL = "controllers/pool"
DEADLINE_S = 1200
_HUNT = """
import asyncio, logging, random, sys
import structlog
from tests.prove.prove_pool import story
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
async def hunt():
    for number in range({worlds}):
        if broken := await story(random.Random(f"{seed}/{{number}}"), deletions={deletions}):
            print(f"world {{number}}: {{broken}}")
            return 1
    return 0
sys.exit(asyncio.run(hunt()))
"""


@dataclass(frozen=True, slots=True)
class Fault:
    """A safeguard, by the lines that are it, and what stands there without it."""

    name: str
    file: str
    lines: str
    without: str = ""
    deletions: int = 1
    """How often RemoteServers are deleted, for what only that shows."""
    worlds: int = 300
    """Tried before the fault counts as missed."""


FAULTS = (
    Fault(
        "compare-and-swap",
        f"{POOL}/writer.py",
        '{"name": server.name, "resourceVersion": server.metadata.resource_version}',
        '{"name": server.name}',
    ),
    Fault(
        "uid of the pod that a promise belongs to",
        f"{POOL}/settle.py",
        "return _decode(raw).metadata.uid == allocation.pod_uid",
        "return True",
    ),
    Fault(
        "resourceVersion of a Binding",
        f"{POOL}/bind.py",
        '                "resourceVersion": version,\n',
    ),
    Fault(
        "promise confirmed before a Binding",
        f"{POOL}/bind.py",
        "await self._lookup.confirmed(pod.uid)",
        "await self._lookup.promise(pod.uid)",
    ),
    Fault(
        "pods asked before a revoked promise passes on",
        f"{POOL}/passing.py",
        "return await move(self._shared, namespace=allocation.namespace, name=allocation.name, uid=uid)",
        "return False",
    ),
    Fault(
        "placed pods heard before a new object offers cards",
        f"{POOL}/settle.py",
        "        await self._witnesses.hear(server)\n",
        deletions=12,
        worlds=2000,
    ),
    Fault(
        "placed pods as second witness",
        f"{POOL}/ledger.py",
        "    kept += _from_witnesses(kept, scene)\n",
    ),
)


@proof("pool_seeded_faults")
def pool_seeded_faults(run: Run) -> None:
    """Every safeguard that is taken out is missed."""
    for fault, _ in zip(FAULTS, run.trials(len(FAULTS)), strict=True):
        with TemporaryDirectory() as folder:
            copy = Path(folder)
            _copy(copy, fault)
            found = _hunt(copy, run.seed, fault)
            run.check(found.startswith("world "), f"without the {fault.name}: {found or 'nothing was found'}")


def _copy(copy: Path, fault: Fault) -> None:
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, copy / package, ignore=ignored)
    file = copy / fault.file
    text = file.read_text()
    if text.count(fault.lines) != 1:
        raise LookupError(
            f"the {fault.name} is not where it was in {fault.file}: tell this proof where it is"
        )
    file.write_text(text.replace(fault.lines, fault.without))


def _hunt(copy: Path, seed: int, fault: Fault) -> str:
    """What broke first, in words; else how the hunt ended."""
    program = _HUNT.format(worlds=fault.worlds, seed=seed, deletions=fault.deletions)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return ended.stdout.strip() or ended.stderr.strip()[-300:]
