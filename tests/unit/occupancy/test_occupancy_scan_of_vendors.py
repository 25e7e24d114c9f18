"""Whole scans with vendors' tools that behave and tools that do not."""

import json
import time
from pathlib import Path

import pytest

from controllers.occupancy.cards import DeviceNumber
from controllers.occupancy.evidence import Why
from controllers.occupancy.holders import State
from controllers.occupancy.sources.furiosa import FuriosaSource
from controllers.occupancy.tools import Tools
from tests.unit.occupancy.ground import FULL, FUSE, REPOSITORY, ZERO, Ground, Programs
from tests.unit.occupancy.scanning import by_card, furiosa, generic, rebellions, scan

FIXTURES = REPOSITORY / "tests/fixtures"
NPU0 = "0000:03:00.0"


class TestFuriosa:
    def cards(self, ground: Ground) -> None:
        ground.rngd(0, NPU0, FULL)
        ground.rngd(1, "0000:04:00.0", FUSE)

    def tool(self, ground: Ground, ps: str, status: str = "[]", drain: str = "") -> None:
        ground.tool(
            "furiosa-smi",
            f"case $1 in ps) {ps};; status) echo '{status}';; drain) echo '{drain}';; *) exit 2;; esac",
        )

    async def test_tool_and_open_files_agree_on_one_holder(self, ground: Ground, programs: Programs) -> None:
        self.cards(ground)
        pid = programs.opener(ground.dev / "rngd/npu0pe0")
        record = json.dumps([{"pid": pid, "dev_name": "npu0:[0, 7]", "cmdline": "/usr/bin/python3 train.py"}])
        self.tool(ground, f"echo '{record}'")
        cards = by_card(await scan(ground, furiosa(ground)))
        assert [h.pid for h in cards["npu0"].holders] == [pid]
        assert (cards["npu0"].state, cards["npu1"].state) == (State.HOST, State.FREE)
        assert cards["npu0"].card.id == NPU0

    async def test_a_tool_that_shows_nobody_does_not_free_a_card_that_is_open(
        self, ground: Ground, programs: Programs
    ) -> None:
        """Finding 4: furiosa-smi under-reported while pods held the cards."""
        self.cards(ground)
        programs.opener(ground.dev / "rngd/npu0pe0")
        self.tool(ground, "echo '[]'")
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].state is State.HOST

    @pytest.mark.parametrize(
        ("ps", "why", "reason"),
        [
            ("sleep 600", Why.SLOW, "furiosa-smi did not answer within 0.5 s"),
            ("echo 'Segmentation fault'", Why.GARBLED, "furiosa-smi ps printed no JSON list"),
            ("exit 1", Why.FAILED, "furiosa-smi ps failed (1)"),
            ("yes", Why.GARBLED, "furiosa-smi printed more than 4194304 bytes"),
        ],
        ids=["hangs", "prints garbage", "exits 1", "prints for ever"],
    )
    async def test_a_bad_tool_costs_its_own_vendor_and_nobody_else(
        self, ground: Ground, ps: str, why: Why, reason: str
    ) -> None:
        self.cards(ground)
        ground.node("acme0", ZERO)
        self.tool(ground, ps)
        began = time.monotonic()
        deadline_s = 0.5 if why is Why.SLOW else 10
        cards = by_card(await scan(ground, furiosa(ground, deadline_s=deadline_s), generic(ground)))
        assert time.monotonic() - began < 30
        assert {(cards[n].state, cards[n].reason) for n in ("npu0", "npu1")} == {(State.UNKNOWN, reason)}
        assert {gap.why for gap in cards["npu0"].gaps} == {why}
        assert cards["acme0"].state is State.FREE

    async def test_a_missing_tool_is_a_gap_unless_the_setting_says_otherwise(self, ground: Ground) -> None:
        self.cards(ground)
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].reason == "furiosa-smi is not installed"
        tools = Tools([ground.bin], deadline_s=5)
        alone = FuriosaSource(ground.host, tools, deadline_s=5, optional_tools=["furiosa-smi"])
        assert by_card(await scan(ground, alone))["npu0"].state is State.FREE

    async def test_a_tool_that_a_user_may_change_is_not_run(self, ground: Ground, tmp_path: Path) -> None:
        self.cards(ground)
        self.tool(ground, f"touch {tmp_path}/ran; echo '[]'")
        (ground.bin / "furiosa-smi").chmod(0o777)
        card = by_card(await scan(ground, furiosa(ground)))["npu0"]
        assert (card.state, {gap.why for gap in card.gaps}) == (State.UNKNOWN, {Why.DENIED})
        assert not (tmp_path / "ran").exists()

    async def test_a_claimed_card_without_a_holder_is_unknown(self, ground: Ground) -> None:
        """C11: npu0 is claimed and idle, npu1 may be free."""
        self.cards(ground)
        self.tool(ground, "echo '[]'", status="status npu0: Core 0: 0.00%   npu1: Core 0: -")
        cards = by_card(await scan(ground, furiosa(ground)))
        assert (cards["npu0"].state, cards["npu1"].state) == (State.UNKNOWN, State.FREE)
        assert "claimed" in cards["npu0"].reason

    async def test_a_claim_in_sysfs_counts_too(self, ground: Ground) -> None:
        self.cards(ground)
        ground.text("class/rngd_mgmt/rngd!npu0mgmt/pe_occupancy", "0\n1\n")
        self.tool(ground, "echo '[]'")
        assert by_card(await scan(ground, furiosa(ground)))["npu0"].state is State.UNKNOWN

    async def test_a_drained_card_is_unknown_and_not_gone(self, ground: Ground) -> None:
        """C11: the fourth card is missing from every list but that of drained cards."""
        self.cards(ground)
        self.tool(ground, "echo '[]'", drain="Drained device BDF: 0000:45:00.0")
        found = await scan(ground, furiosa(ground))
        drained = next(v for v in found.verdicts if v.card.id == "0000:45:00.0")
        assert (drained.state, drained.gaps[0].text) == (State.UNKNOWN, "drained")
        assert by_card(found)["npu0"].state is State.FREE


class TestRebellions:
    def tool(self, ground: Ground, document: str) -> None:
        file = ground.bin / "document.json"
        file.write_text(document)
        ground.tool("rbln-stat", f"exec cat {file}")

    async def test_the_loaded_node_with_its_processes_gone(self, ground: Ground) -> None:
        """The recording's processes do not live here: memory without a process, on the cards that can be told."""
        recording = (FIXTURES / "rebellions/rbln-stat.loaded-8-cards.json").read_text()
        for device in json.loads(recording)["devices"]:
            number = int(device["device"].removeprefix("rbln"))
            ground.rbln(number, device["pci"]["bus_id"], DeviceNumber(240, number))
        self.tool(ground, recording)
        found = by_card(await scan(ground, rebellions(ground)))
        assert len(found) == 8
        assert {name for name, card in found.items() if card.in_use} == {"rbln6", "rbln7"}
        assert {card.state for card in found.values()} == {State.UNKNOWN}
        assert found["rbln6"].card.uuid == "00000000-0000-4000-8000-000000000003"

    async def test_an_open_file_places_a_context_that_the_tool_could_not(
        self, ground: Ground, programs: Programs
    ) -> None:
        """Finding 5: several cards bear the number; the open file tells which is meant."""
        ground.rbln(0, "0000:03:00.0", FULL)
        ground.rbln(1, "0000:04:00.0", FUSE)
        pid = programs.opener(ground.dev / "rbln0")
        devices = [
            {"npu": 0, "device": f"rbln{n}", "pci": {"bus_id": f"0000:0{n + 3}:00.0"}} for n in range(2)
        ]
        self.tool(ground, json.dumps({"devices": devices, "contexts": [{"npu": 0, "pid": str(pid)}]}))
        found = by_card(await scan(ground, rebellions(ground)))
        assert (found["rbln0"].state, found["rbln1"].state) == (State.HOST, State.FREE)

    async def test_a_group_node_leaves_its_members_open_and_no_others(
        self, ground: Ground, programs: Programs
    ) -> None:
        for number in range(3):
            ground.rbln(number, f"0000:0{number + 3}:00.0", DeviceNumber(240, number))
        ground.text("class/rebellions/rsd/rsd_group", "group,count,device\n1,2,rbln0\n1,2,rbln1\n2,1,rbln2\n")
        programs.opener(ground.node("rsd1", FULL))
        self.tool(ground, '{"devices": [], "contexts": []}')
        found = by_card(await scan(ground, rebellions(ground)))
        states = [found[f"rbln{n}"].state for n in range(3)]
        assert states == [State.UNKNOWN, State.UNKNOWN, State.FREE]

    async def test_a_group_of_one_is_that_card(self, ground: Ground, programs: Programs) -> None:
        ground.rbln(0, "0000:03:00.0", FUSE)
        ground.text("class/rebellions/rsd/rsd_group", "1,1,rbln0\n")
        programs.opener(ground.node("rsd1", FULL))
        self.tool(ground, '{"devices": [], "contexts": []}')
        assert by_card(await scan(ground, rebellions(ground)))["rbln0"].state is State.HOST

    async def test_ctx_info_names_holders_and_spoils_its_own_card_only(
        self, ground: Ground, programs: Programs
    ) -> None:
        pid = programs.opener(ground.node("other", FULL))
        ground.rbln(0, "0000:03:00.0", ZERO, ctx_info=f"{pid} 10001 normal 0 3.5GiB idle 1.1\n")
        ground.rbln(1, "0000:04:00.0", FUSE, ctx_info="no context here\n")
        self.tool(ground, '{"devices": [], "contexts": []}')
        found = by_card(await scan(ground, rebellions(ground)))
        assert (found["rbln0"].state, found["rbln1"].state) == (State.HOST, State.UNKNOWN)

    async def test_a_hidden_device_node_makes_the_card_unknown(self, ground: Ground) -> None:
        ground.rbln(0, "0000:03:00.0", None)
        self.tool(ground, '{"devices": [], "contexts": []}')
        card = by_card(await scan(ground, rebellions(ground)))["rbln0"]
        assert (card.state, card.reason) == (State.UNKNOWN, "no compute device node of rbln0 is visible")
