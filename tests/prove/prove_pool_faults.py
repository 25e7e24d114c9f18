"""What watches over the pool is able to fail: `make prove ONLY=pool_seeded_faults` and `ONLY=pool_review_findings`.

Each trial takes one safeguard out of a copy of the sources. Either the random worlds are let loose on it, until they
find what the safeguard was for; or the one test that is about it has to fail.
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
# Worlds that are tried before the fault counts as missed. The rarest was seen in the 686th world of one seed, and in
# the first 300 of another.
WORLDS = 3000
DEADLINE_S = 1800
_HUNT = """
import asyncio, logging, random, sys
import structlog
from tests.prove.prove_pool import story
structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
async def hunt():
    for number in range({worlds}):
        if broken := await story(random.Random(f"{seed}/{{number}}")):
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
            found = _hunt(copy, run.seed)
            run.check(found.startswith("world "), f"without the {fault.name}: {found or 'nothing was found'}")


def _copy(copy: Path, fault: Fault) -> None:
    for package in PACKAGES:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / package, copy / package, ignore=ignored)
    shutil.copy(REPOSITORY / "pyproject.toml", copy)
    file = copy / fault.file
    text = file.read_text()
    if text.count(fault.lines) != 1:
        raise LookupError(
            f"the {fault.name} is not where it was in {fault.file}: tell this proof where it is"
        )
    file.write_text(text.replace(fault.lines, fault.without))


def _hunt(copy: Path, seed: int) -> str:
    """What broke first, in words; else how the hunt ended."""
    program = _HUNT.format(worlds=WORLDS, seed=seed)
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    return ended.stdout.strip() or ended.stderr.strip()[-300:]


RULES = "tests/unit/pool/test_rules_"
# Findings of the review of HAMi's remote backend, by number, with the test that is about each. R1, the names of the
# resources in the scheduler's configuration, is the chart's: tests/cluster/test_pool_renamed.py and the chart's tests.
FINDINGS = {
    f"{RULES}15_to_20_accounting.py::test_rule_17": Fault(
        "R2: resourceVersion of a promise",
        f"{POOL}/writer.py",
        '{"name": server.name, "resourceVersion": server.metadata.resource_version}',
        '{"name": server.name}',
    ),
    f"{RULES}1_to_8_discovery.py::test_rule_8": Fault(
        "R3: no cards are no error",
        f"{POOL}/settle.py",
        "inventory = self._inventory(node, server) if node and serves else Inventory()",
        "assert node and serves; inventory = self._inventory(node, server)",
    ),
    f"{RULES}1_to_8_discovery.py::test_rule_6": Fault(
        "R4: mode of a card",
        f"{POOL}/servers.py",
        "        if card.mode == rules.mode\n",
    ),
    f"{RULES}21_to_31_reading_and_telling.py::test_rule_25": Fault(
        "R5: resourceVersion of a promise",
        f"{POOL}/writer.py",
        '{"name": server.name, "resourceVersion": server.metadata.resource_version}',
        '{"name": server.name}',
    ),
    f"{RULES}21_to_31_reading_and_telling.py::test_rule_23": Fault(
        "R6: an answer that is late",
        f"{POOL}/book.py",
        "(fresh and known is not None and _overtaken(known, server))",
        "False",
    ),
    f"{RULES}21_to_31_reading_and_telling.py::test_rule_29": Fault(
        "R7: as many cards as the pod asks for",
        f"{POOL}/pods.py",
        "if asked is None or len(cards) != len(asked.slots):",
        "if asked is None:",
    ),
    f"{RULES}21_to_31_reading_and_telling.py::test_rule_28": Fault(
        "R8: annotations in what makes a node another one",
        f"{POOL}/pool.py",
        "        meta.annotations,\n",
    ),
    f"{RULES}21_to_31_reading_and_telling.py::test_rule_30": Fault(
        "H2: a card once, and not once per node",
        f"{POOL}/collect.py",
        "        for server in self._book:\n            self._server(server, limit, held, overview)\n",
        "        for server in [*self._book] * 2:\n            self._server(server, limit, held, overview)\n",
    ),
    "tests/unit/pool/test_new_object.py::": Fault(
        "census of placed pods before a new object offers cards",
        f"{POOL}/settle.py",
        "        await self._witnesses.hear(server)\n",
    ),
}


@proof("pool_review_findings")
def pool_review_findings(run: Run) -> None:
    """The test of each finding passes on the sources as they are, and fails without its safeguard."""
    nothing = Fault("nothing", f"{POOL}/writer.py", "class ServerWriter:", "class ServerWriter:")
    cases = [(test, fault, taken) for test, fault in FINDINGS.items() for taken in (False, True)]
    for (test, fault, taken), _ in zip(cases, run.trials(len(cases)), strict=True):
        with TemporaryDirectory() as folder:
            copy = Path(folder)
            _copy(copy, fault if taken else nothing)
            code = _tested(copy, test)
            run.check(
                code == int(taken), f"{test} ended with {code} {'without' if taken else 'with'} {fault.name}"
            )


def _tested(copy: Path, test: str) -> int:
    """Exit code of pytest: 0 when all passed, 1 when one failed."""
    file, _, name = test.partition("::")
    chosen = ["-k", f"{name}_"] if name else []
    options = ["-q", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, file],
        cwd=copy,
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    ).returncode
