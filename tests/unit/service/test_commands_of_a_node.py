"""`tenure regions`, `tenure holders` and `tenure node --once --dry-run` as programs that ask nothing but the node."""

import json
import signal
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.commands import command, environment, sentence, tenure
from tests.unit.occupancy.ground import FULL, FUSE, Ground, Programs

FIXTURES = Path(__file__).parents[2] / "fixtures"
SM, LEDGER = FIXTURES / "sm_node.v3.config", FIXTURES / "vmem_node.v1.config"


class TestRegions:
    def test_a_recorded_budget_is_a_table_without_columns_that_nothing_is_known_for(self) -> None:
        ran = tenure("regions", SM)
        assert (ran.returncode, ran.stderr) == (0, "")
        header, row = ran.stdout.splitlines()
        assert header.split("  ")[0] == "DEVICE"
        assert "POD" not in header
        assert row.split() == ["0", "30", "%", "5", "%", "382367/8650752", "pid", "705,", "lock", "unknown"]

    def test_a_recorded_ledger_without_records_says_so(self) -> None:
        ran = tenure("regions", LEDGER)
        assert (ran.returncode, ran.stdout) == (0, "No device has a record here.\n")

    @pytest.mark.parametrize("output", ["json", "yaml"])
    def test_the_whole_answer_comes_as_json_and_yaml(self, output: str) -> None:
        ran = tenure("regions", SM, "-o", output)
        (row,) = yaml.safe_load(ran.stdout)
        assert (ran.returncode, row["device"], row["smLimit"], row["samplingPid"]) == (0, 0, 30, 705)

    def test_a_region_that_cannot_be_read_among_a_container_s_is_a_finding(self, tmp_path: Path) -> None:
        folder = tmp_path / "0a1b2c3d-0000-4000-8000-000000000001_main" / "sm_node"
        folder.mkdir(parents=True)
        (folder / "sm_node.config").write_bytes(SM.read_bytes().replace(b"DNMS", b"XXXX"))
        ran = tenure("regions", tmp_path)
        assert ran.returncode == 1
        assert "neither SMND nor VMND" in ran.stdout
        assert "1 container: " in ran.stdout

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["/nowhere"], "there is nothing at /nowhere"),
            ([__file__], "is no region file"),
            (["--watch", "-o", "json"], "--watch shows a table: leave --output away"),
        ],
    )
    def test_what_cannot_be_shown_is_one_sentence(self, arguments: list[str], words: str) -> None:
        assert words in sentence(tenure("regions", *arguments))

    def test_off_a_node_the_sentence_says_what_else_can_be_shown(self, tmp_path: Path) -> None:
        line = sentence(tenure("regions", TENURE_REGIONS__ROOT=str(tmp_path / "none")))
        assert "name a copied file: tenure regions FILE" in line

    def test_watching_a_pipe_prints_table_below_table_until_it_is_interrupted(self) -> None:
        # Where the tests run in the background, a child ignores the signal as they do.
        argv = ["env", "--default-signal=INT", *command("regions", "--watch", SM)]
        with subprocess.Popen(argv, env=environment(), stdout=subprocess.PIPE, text=True) as watching:
            assert watching.stdout is not None
            lines = [watching.stdout.readline().split("  ")[0] for _ in range(4)]
            watching.send_signal(signal.SIGINT)
            watching.stdout.read()
        assert lines == ["DEVICE", "0", "DEVICE", "0"]
        assert watching.returncode == 0


@pytest.fixture
def config(ground: Ground, tmp_path: Path) -> Path:
    """Settings of an agent that sees the cards of the test alone."""
    file = tmp_path / "tenure.yaml"
    file.write_text(yaml.safe_dump({"node": {"name": "node-a"}, "occupancy": ground.settings}))
    return file


class TestHolders:
    def test_this_machine_is_shown_card_by_card_and_a_host_process_is_a_finding(
        self, ground: Ground, programs: Programs, config: Path
    ) -> None:
        pid = programs.opener(ground.node("acme0", FULL))
        ground.node("acme1", FUSE)
        ran = tenure("holders", "--config", config)
        assert (ran.returncode, ran.stderr) == (1, "")
        header, held, free, total, note = ran.stdout.splitlines()
        assert header.split() == ["NODE", "CARD", "VENDOR", "STATE", "HELD", "BY"]
        assert held.split()[:4] == ["node-a", "acme0", "acme", "host"]
        assert f"({pid}, host)" in held
        assert free.split() == ["node-a", "acme1", "acme", "free"]
        assert total == "2 cards: 1 free, 1 host"
        assert "there is no kubeconfig" in note

    def test_free_cards_are_no_finding_and_the_answer_comes_as_json(
        self, ground: Ground, config: Path
    ) -> None:
        ground.node("acme1", FUSE)
        ran = tenure("holders", "--here", "-o", "json", "--config", config)
        (card,) = json.loads(ran.stdout)["cards"]
        assert (ran.returncode, card["card"], card["state"]) == (0, "acme1", "free")

    def test_a_machine_without_cards_and_without_a_cluster_says_both(self, config: Path) -> None:
        ran = tenure("holders", "--config", config)
        assert ran.returncode == 0
        assert ran.stdout.startswith("There is no card here.\n")

    def test_the_cluster_needs_a_way_to_it(self, config: Path) -> None:
        assert "there is no kubeconfig" in sentence(tenure("holders", "--cluster", "--config", config))


class TestNode:
    @pytest.mark.parametrize("arguments", [["--once"], ["--dry-run"], ["-o", "json"]])
    def test_what_goes_together_is_asked_for_together(self, arguments: list[str]) -> None:
        assert "give --once --dry-run" in sentence(tenure("node", *arguments))

    def test_a_dry_run_needs_the_node_that_it_would_write(self) -> None:
        assert "there is no kubeconfig" in sentence(tenure("node", "--once", "--dry-run"))
