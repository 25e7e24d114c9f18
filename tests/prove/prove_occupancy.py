"""What vendors' tools and /proc may print, damaged in every way: `make prove ONLY=occupancy_inputs`."""

import json
import random
from collections.abc import Callable
from pathlib import Path

from controllers.occupancy import profiles, visibility
from controllers.occupancy.cards import Card
from controllers.occupancy.cgroups import Managed, classify
from controllers.occupancy.damping import Damping, settle
from controllers.occupancy.evidence import Findings
from controllers.occupancy.holders import Scene, State, judge
from controllers.occupancy.kin import Kin
from controllers.occupancy.pods import PodIndex
from controllers.occupancy.processes import Described, Missing, Process, base_name, parse_stat
from controllers.occupancy.vendors import furiosa, nvidia, nvidia_smi, rebellions
from tests.prove.proofs import Run, proof

FIXTURES = Path(__file__).parents[1] / "fixtures"
TRIALS = 100_000
MOST_PID = 4_194_304
LONGEST_COMMAND = 64
# The custom resource's bound of one value, in characters.
LONGEST_VALUE = 32_768
H64 = "0123456789abcdef" * 4
UID = "0f3b1c2d-4e5f-4071-8293-a4b5c6d7e8f9"
CUDA = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
MIG = "MIG-7f000000-0000-5000-8000-000000000001"

RNGD = [Card("furiosa", f"0000:{n:02x}:00.0", f"npu{n}", bdf=f"0000:{n:02x}:00.0") for n in range(8)]
ATOM = [Card("rebellions", f"0000:{n:02x}:00.0", f"rbln{n}", bdf=f"0000:{n:02x}:00.0") for n in range(8)]
H200 = [Card("nvidia", CUDA, "nvidia0", uuid=CUDA)]

CGROUPS = (
    f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{H64}.scope\n",
    f"9:name=systemd:/\n8:pids:/kubepods/besteffort/pod{UID}/{H64}\n0::/\n",
    "0::/../../../../user.slice/user-1001.slice/session-4.scope\n",
)
ROOTS = ("0::/", "0::/../../../..", "9:name=systemd:/\n8:pids:/\n0::/", "")
STAT = "704 (a) (b) c) S 415 413 413 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 4 0 987654 0 0"
MOUNTS = "22 27 0:21 / /proc rw,relatime,hidepid=2 - proc proc rw,hidepid=invisible\n"
TABLE = "+------+--------+----------------+\n|      |        | Core 0: 0.00%, |\n| rngd | npu0   | Core 1: -,     |\n"
# Pieces that parsers trip over: signs, other alphabets' digits, line ends of other systems, deep nesting, huge numbers.
NOISE = (
    *(b"-1", b"0", b"9" * 40, b"1e999", b"NaN", b"null", b"true", b"[" * 2000, b'{"a":' * 200, b"\\ud800"),
    *("\u0663\u0661".encode(), b"\xff\xfe", b"\0", b"\r", b"\x1b[2J", "\u2028".encode(), b",,,,", b'"', b"]"),
    *(
        b"/../..",
        b"pod",
        b".slice",
        b":cri-containerd:",
        b" (deleted)",
        b"(",
        b")",
        b"npu99999",
        b"MIG-GPU-/1/2",
    ),
)

Reader = Callable[[bytes], tuple[Findings, list[Card]]]


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def _ps(data: bytes) -> tuple[Findings, list[Card]]:
    return furiosa.read_ps(data, RNGD), RNGD


def _status(data: bytes) -> tuple[Findings, list[Card]]:
    claimed = furiosa.read_status(data)
    furiosa.read_info(data)
    furiosa.read_drained(data)
    furiosa.read_pe_occupancy(_text(data))
    return Findings(gaps=tuple(furiosa.claimed(c, "x") for c in RNGD if c.kernel_name in claimed)), RNGD


def _rbln(data: bytes) -> tuple[Findings, list[Card]]:
    document = rebellions.read_document(data)
    if document is None:
        return Findings(), ATOM
    cards = [Card("rebellions", d.bdf, d.name, bdf=d.bdf) for d in document.devices]
    return rebellions.read_contexts(document, cards), cards


def _ctx_info(data: bytes) -> tuple[Findings, list[Card]]:
    rebellions.read_groups(_text(data))
    return rebellions.read_ctx_info(_text(data), ATOM[0]), ATOM


def _nvml(data: bytes) -> tuple[Findings, list[Card]]:
    answer = nvidia.read_nvml(data)
    return (nvidia.from_nvml(answer, H200) if answer else Findings()), H200


def _smi(data: bytes) -> tuple[Findings, list[Card]]:
    answer = nvidia_smi.SmiAnswer(
        nvidia_smi.read_gpus(data), nvidia_smi.read_apps(data), len(data) % 2, nvidia_smi.read_list(data)
    )
    nvidia.read_information(_text(data))
    return nvidia_smi.from_smi(answer, H200), H200


def _inputs() -> list[tuple[Reader, bytes]]:
    def recorded(reader: Reader, *names: str) -> list[tuple[Reader, bytes]]:
        return [(reader, (FIXTURES / name).read_bytes()) for name in names]

    loaded = "rebellions/rbln-stat.loaded-8-cards.json"
    probe = [
        {"uuid": CUDA, "bdf": "00000000:00:06.0", "minor": 0, "name": "H200", "mig": True, "pids": [704]}
    ]
    rows = f"{CUDA}, 704, /tmp/a,b, 534\nMIG-{CUDA}/3/0, 511, python3, [N/A]\n{MIG}, 512, x, 1\n"
    listed = f"GPU 0: A100 (UUID: {CUDA})\n  MIG 1g.5gb Device 0: (UUID: {MIG})\n"
    status = [{"device": "npu0", "pe_utilizations": [{"pe_core": 0, "pe_occupancy": True}]}]
    return [
        *recorded(
            _ps, "furiosa/furiosa-smi-ps.two-host-holders.json", "furiosa/furiosa-smi-ps.variants.json"
        ),
        *recorded(_rbln, loaded, "rebellions/rbln-stat.idle-4-cards.json"),
        *recorded(_smi, "nvidia/compute-apps.csv", "nvidia/gpus.csv", "nvidia/gpu-information.txt"),
        (_smi, rows.encode()),
        (_smi, listed.encode()),
        (_nvml, json.dumps(probe).encode()),
        (_status, TABLE.encode()),
        (_status, json.dumps(status).encode()),
        (_ctx_info, b"2733390 10001 normal 0 3.5GiB idle 1.1\n0,2,rbln0\n"),
    ]


@proof("occupancy_inputs")
def occupancy_inputs(run: Run) -> None:
    """Whatever a tool or /proc prints: no error comes out, every word is bounded, and nobody's absence is made up."""
    inputs = _inputs()
    for rng in run.trials(TRIALS):
        reader, base = rng.choice(inputs)
        try:
            findings, cards = reader(_damaged(rng, base))
            _check_findings(run, findings, cards)
            _check_verdicts(run, rng, findings, cards)
            _check_truncated(run, rng)
            _check_proc(run, rng)
        except Exception as error:  # noqa: BLE001 - any error is what this proof looks for
            run.check(holds=False, otherwise=f"{reader.__name__}: {type(error).__name__}: {error}")


def _damaged(rng: random.Random, base: bytes) -> bytes:
    data = bytearray(base)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.randrange(20))
        match rng.randrange(6):
            case 0:
                data[at:end] = rng.choice(NOISE)
            case 1:
                data[at:end] = rng.randbytes(rng.randrange(12))
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * rng.randrange(1, 4)
            case 4:
                del data[at:]
            case _:
                data[at:at] = rng.choice((b"\n", b",", b" ", b"\t", b"{}", b"[]", b"0"))
    return bytes(data)


def _check_findings(run: Run, findings: Findings, cards: list[Card]) -> None:
    ids = {card.id for card in cards}
    for seen in findings.sightings:
        run.check(seen.card in ids, f"a holder of a card that is not there: {seen}")
        run.check(0 < seen.pid <= MOST_PID, f"a process id that cannot be: {seen}")
        run.check(
            len(seen.command) <= LONGEST_COMMAND and (seen.command.isprintable()), f"command {seen.command!r}"
        )
    for gap in findings.gaps:
        run.check(gap.text.isprintable() and len(gap.text) < 300, f"a reason that is no line: {gap.text!r}")


def _check_verdicts(run: Run, rng: random.Random, findings: Findings, cards: list[Card]) -> None:
    """What is published of it: strings within their bounds, and "free" only without holder and gap."""
    described: dict[int, Described] = {s.pid: _somebody(rng, s.pid) for s in findings.sightings}
    scene = Scene(described, Kin("lupine_driver_server", processes=described), PodIndex())
    for verdict in judge(cards, findings, scene):
        said = [s for s in findings.sightings if s.card == verdict.card.id]
        if verdict.state is State.FREE and not verdict.holders:
            quiet = all(not gap.covers(verdict.card.id) for gap in findings.gaps)
            run.check(quiet and not said, f"called free beside {said or findings.gaps}")
        told = profiles.keys(settle(None, verdict, Damping(), "2026-01-01T00:00:00Z"))
        if told:
            json.loads(told[profiles.HOLDERS])
        run.check(all(len(value) <= LONGEST_VALUE for value in told.values()), "a value beyond its bound")


def _somebody(rng: random.Random, pid: int) -> Described:
    if rng.randrange(3) == 0:
        return rng.choice(list(Missing))
    placement = classify(rng.choice(CGROUPS), root=rng.choice(ROOTS))
    return Process(pid, start=1, parent=1, group=pid, command="x", placement=placement)


def _check_truncated(run: Run, rng: random.Random) -> None:
    """A document that breaks off is never taken for a shorter list of holders."""
    whole = (FIXTURES / "furiosa/furiosa-smi-ps.variants.json").read_bytes().rstrip()
    broken = furiosa.read_ps(whole[: rng.randrange(len(whole))], RNGD)
    run.check(any(gap.cards is None for gap in broken.gaps), "a broken list was read as a whole one")


def _check_proc(run: Run, rng: random.Random) -> None:
    cgroup = _text(_damaged(rng, rng.choice(CGROUPS).encode()))
    placed = classify(cgroup, root=_text(_damaged(rng, rng.choice(ROOTS).encode())))
    climbs = any(line.split("/")[1:2] == [".."] for line in cgroup.split("\n"))
    run.check(placed.managed is not Managed.LUPINE, "a path is never lupine")
    run.check(not placed.container_id or len(placed.container_id) == len(H64), f"container {placed}")
    run.check(placed.managed is not Managed.K8S or bool(placed.pod_uid), f"a pod without a uid: {cgroup!r}")
    if climbs:
        alone = classify(cgroup, root="0::/\n8:pids:/\n9:name=systemd:/")
        run.check(
            alone.managed is not Managed.HOST or "\n" in cgroup.strip(),
            f"a cut path is called host: {cgroup!r}",
        )
    parse_stat(_text(_damaged(rng, STAT.encode())))
    visibility.hides_processes(_text(_damaged(rng, MOUNTS.encode())))
    visibility.may_trace(_text(_damaged(rng, b"CapEff:\t000001fffeffffff\n")))
    run.check(base_name(_text(_damaged(rng, b"/usr/bin/python3 (deleted)"))).isprintable(), "a name")
