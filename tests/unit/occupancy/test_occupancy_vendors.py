"""What the vendors' tools print when things are not as in the book."""

import json
import re

import pytest

from controllers.occupancy.cards import Card, DeviceNumber
from controllers.occupancy.evidence import Findings, Why
from controllers.occupancy.vendors import furiosa, generic, nvidia, nvidia_smi, rebellions
from controllers.occupancy.vendors.generic import CardClass, Node


def uuid(letter: str) -> str:
    return f"GPU-{letter * 8}-0000-4000-8000-{letter * 12}"


def gpu(letter: str) -> Card:
    return Card("nvidia", uuid(letter), f"nvidia{letter}", uuid=uuid(letter))


RNGD = [Card("furiosa", f"bdf{n}", f"npu{n}", bdf=f"0000:0{n}:00.0") for n in range(3)]
ATOM = [Card("rebellions", f"0000:0{n}:00.0", f"rbln{n}", bdf=f"0000:0{n}:00.0") for n in range(2)]


class TestFuriosaPs:
    def test_a_bad_record_does_not_hide_the_good_ones_and_leaves_the_rest_open(self) -> None:
        records = [{"pid": 5, "dev_name": "npu0:[0, 7]", "cmdline": ""}, {"pid": "x", "dev_name": "npu1"}, 7]
        findings = furiosa.read_ps(json.dumps(records).encode(), RNGD)
        assert [(s.card, s.pid) for s in findings.sightings] == [("bdf0", 5)]
        assert [gap.cards for gap in findings.gaps] == [frozenset({"bdf1"}), None]

    @pytest.mark.parametrize("data", [b"", b"{}", b"Error: no driver", b"\xff\xfe", b"[" * 5000])
    def test_what_is_no_list_is_a_gap(self, data: bytes) -> None:
        (gap,) = furiosa.read_ps(data, RNGD).gaps
        assert (gap.why, gap.cards) == (Why.GARBLED, None)

    def test_a_holder_of_a_card_that_is_not_known_leaves_all_cards_open(self) -> None:
        (gap,) = furiosa.read_ps(b'[{"pid": 5, "dev_name": "npu9"}]', RNGD).gaps
        assert gap.cards is None

    @pytest.mark.parametrize(
        "record",
        [
            {"npu": "npu1", "pid": 9, "cmd": "/opt/bench --x", "memory": "1"},
            {"device": "npu1", "pid": "9", "command": "bench", "memory_usage": 3},
            {"dev_name": "npu1pe0-3", "pid": 9, "cmdline": "bench"},
        ],
    )
    def test_older_records_are_read(self, record: dict[str, object]) -> None:
        (seen,) = furiosa.read_ps(json.dumps([record]).encode(), RNGD).sightings
        assert (seen.card, seen.pid, seen.command) == ("bdf1", 9, "bench")


class TestFuriosaClaims:
    """C11: zero percent is claimed and idle; a dash is a core that nobody uses."""

    def test_a_claimed_core_in_the_table(self) -> None:
        table = (
            "+------+--------+------------------+\n|      |        | Core 0: 0.00%,   |\n"
            "| rngd | npu0   | Core 1: -,       |\n+------+--------+------------------+\n"
            "|      |        | Core 0: -,       |\n| rngd | npu1   | Core 1: -        |\n+------+--------+---+\n"
        )
        assert furiosa.read_status(table.encode()) == {"npu0"}

    def test_a_claimed_core_in_short_lines(self) -> None:
        assert furiosa.read_status(b"status npu0: Core 0: 0.00%   npu1: Core 0: -") == {"npu0"}

    def test_a_claimed_core_in_json(self) -> None:
        records = [
            {"device": "npu0", "pe_utilizations": [{"pe_core": 0, "pe_occupancy": True}]},
            {
                "device": "npu1",
                "pe_utilizations": [{"pe_core": 0, "pe_occupancy": False, "pe_utilization": 99.0}],
            },
            {"device": "npu2", "cores": [{"idx": 0, "status": "occupied"}]},
        ]
        assert furiosa.read_status(json.dumps(records).encode()) == {"npu0", "npu2"}

    def test_drained_cards_are_known_by_their_address(self) -> None:
        assert furiosa.read_drained(b"Drained device BDF: 0000:45:00.0\n") == ("0000:45:00.0",)
        assert furiosa.read_drained(b"No drained device") == ()

    def test_occupied_cores_in_sysfs(self) -> None:
        assert furiosa.read_pe_occupancy("0\n0\n1\n0\n")
        assert not furiosa.read_pe_occupancy("0\n0\n\n")


class TestNvidiaSmi:
    def test_utilisation_is_evidence_for_nothing(self) -> None:
        """C7: a card that reports 100 % for days, with no process and no memory."""
        gpus = nvidia_smi.read_gpus(f"0, {uuid('a')}, 100 %, 0 MiB\n".encode())
        answer = nvidia_smi.SmiAnswer(gpus, nvidia_smi.read_apps(b""))
        assert nvidia_smi.from_smi(answer, [gpu("a")]) == Findings()

    def test_rows_count_and_their_absence_does_not_when_the_exit_code_is_bad(self) -> None:
        """C8, first recording."""
        text = (
            f"{uuid('a')}, 4242, python3, 1024\n"
            "Unable to determine the device handle for GPU0000:BA:00.0: Unknown Error\n"
        )
        apps = nvidia_smi.read_apps(text.encode())
        answer = nvidia_smi.SmiAnswer(nvidia_smi.read_gpus(f"0, {uuid('a')}, H20\n".encode()), apps, code=255)
        findings = nvidia_smi.from_smi(answer, [gpu("a"), gpu("b")])
        assert [(s.card, s.pid) for s in findings.sightings] == [(uuid("a"), 4242)]
        texts = {gap.text for gap in findings.gaps if gap.covers(uuid("b"))}
        assert "nvidia-smi failed (255)" in texts

    def test_an_error_sentence_is_neither_header_nor_row(self) -> None:
        """C8, second recording."""
        text = b"Failed to initialize NVML: Driver/library version mismatch\n"
        assert nvidia_smi.read_apps(text).rows == ()
        answer = nvidia_smi.SmiAnswer(nvidia_smi.read_gpus(text), nvidia_smi.read_apps(text), code=18)
        findings = nvidia_smi.from_smi(answer, [gpu("a"), gpu("b")])
        assert findings.sightings == ()
        assert all(any(gap.covers(uuid(x)) for gap in findings.gaps) for x in "ab")

    def test_a_lost_card_is_unknown_and_the_others_are_not(self) -> None:
        answer = nvidia_smi.SmiAnswer(
            nvidia_smi.read_gpus(f"0, {uuid('a')}, x\n".encode()), nvidia_smi.read_apps(b"")
        )
        (gap,) = nvidia_smi.from_smi(answer, [gpu("a"), gpu("b")]).gaps
        assert gap.cards == frozenset({uuid("b")})

    def test_a_name_with_commas_and_cells_without_numbers_drop_no_row(self) -> None:
        text = f"{uuid('a')}, 512, a,b c, [N/A]\n{uuid('a')}, 513, [Not Found], [Insufficient Permissions]\n"
        assert [row[1:] for row in nvidia_smi.read_apps(text.encode()).rows] == [
            (512, "a,b c"),
            (513, "[Not Found]"),
        ]


class TestMig:
    """C9."""

    new = "MIG-7f000000-0000-5000-8000-000000000001"

    def answer(self, rows: str, parents: dict[str, str] | None = None) -> nvidia_smi.SmiAnswer:
        listed = f"0, {uuid('a')}, A100, 00000000:01:00.0, Enabled\n1, {uuid('b')}, A100, 00000000:02:00.0, Disabled\n"
        return nvidia_smi.SmiAnswer(
            nvidia_smi.read_gpus(listed.encode()), nvidia_smi.read_apps(rows.encode()), parents=parents or {}
        )

    def test_an_old_id_names_its_card(self) -> None:
        answer = self.answer(f"MIG-{uuid('a')}/3/0, 511, python3, [Insufficient Permissions]\n")
        findings = nvidia_smi.from_smi(answer, [gpu("a"), gpu("b")])
        assert [(s.card, s.pid) for s in findings.sightings] == [(uuid("a"), 511)]
        assert findings.gaps == ()

    def test_a_new_id_is_placed_by_the_list(self) -> None:
        listed = f"GPU 0: A100 (UUID: {uuid('a')})\n  MIG 1g.5gb Device 0: (UUID: {self.new})\n"
        parents = nvidia_smi.read_list(listed.encode())
        findings = nvidia_smi.from_smi(self.answer(f"{self.new}, 512, a,b c, [N/A]\n", parents), [gpu("a")])
        assert [(s.card, s.pid) for s in findings.sightings] == [(uuid("a"), 512)]

    def test_a_new_id_that_nobody_can_place_opens_the_cards_in_mig_mode_only(self) -> None:
        findings = nvidia_smi.from_smi(self.answer(f"{self.new}, 512, x, [N/A]\n"), [gpu("a"), gpu("b")])
        assert findings.sightings == ()
        assert [gap.cards for gap in findings.gaps] == [frozenset({uuid("a")})]


class TestNvml:
    def test_processes_are_listed_by_card(self) -> None:
        data = [{"uuid": uuid("a"), "bdf": "00000000:01:00.0", "minor": 0, "name": "H200", "pids": [7, 8]}]
        answer = nvidia.read_nvml(json.dumps(data).encode())
        assert answer is not None
        assert [s.pid for s in nvidia.from_nvml(answer, [gpu("a")]).sightings] == [7, 8]

    def test_a_card_whose_list_failed_is_a_gap_and_the_others_are_not(self) -> None:
        data = [{"uuid": uuid("a"), "pids": None}, {"uuid": uuid("b"), "pids": []}, {"error": "GPU is lost"}]
        answer = nvidia.read_nvml(json.dumps(data).encode())
        assert answer is not None
        gaps = nvidia.from_nvml(answer, [gpu("a"), gpu("b")]).gaps
        assert [gap.cards for gap in gaps] == [frozenset({uuid("a")}), frozenset()]

    def test_a_process_that_is_none_spoils_the_card_and_not_the_document(self) -> None:
        answer = nvidia.read_nvml(json.dumps([{"uuid": uuid("a"), "pids": [7, -1]}]).encode())
        assert answer is not None
        assert [gap.cards for gap in nvidia.from_nvml(answer, [gpu("a")]).gaps] == [frozenset({uuid("a")})]

    @pytest.mark.parametrize("data", [b"", b"{}", b"NVML Shared Library Not Found\n"])
    def test_what_is_no_list_is_no_answer(self, data: bytes) -> None:
        assert nvidia.read_nvml(data) is None

    def test_a_card_that_the_driver_has_not_initialised_has_no_name_yet(self) -> None:
        text = "GPU UUID: GPU-????????-????-????-????-????????????\nBus Location: 0000:01:00.0\nDevice Minor: 0\n"
        assert nvidia.read_information(text) is None


class TestRebellions:
    def test_ctx_info_gives_the_first_integer_of_each_line(self) -> None:
        findings = rebellions.read_ctx_info("2733390 10001 normal 0 3.5GiB idle 1.1\n\n41 2\n", ATOM[0])
        assert [s.pid for s in findings.sightings] == [2733390, 41]
        assert findings.gaps == ()

    @pytest.mark.parametrize("line", ["no context", "99999999999 1", "0 1"])
    def test_a_line_without_a_process_id_makes_the_card_unknown(self, line: str) -> None:
        findings = rebellions.read_ctx_info(f"77 1\n{line}\n", ATOM[0])
        assert [s.pid for s in findings.sightings] == [77]
        assert [gap.cards for gap in findings.gaps] == [frozenset({ATOM[0].id})]

    def test_groups_are_read_and_other_lines_skipped(self) -> None:
        text = "group,count,device\n0,2,rbln0\n0,2,rbln1\n3,1,rbln7\nnonsense\n"
        assert rebellions.read_groups(text) == {0: {"rbln0", "rbln1"}, 3: {"rbln7"}}

    @pytest.mark.parametrize("data", [b"", b"[]", b'{"devices": []}', b"Segmentation fault"])
    def test_what_is_no_document_is_none(self, data: bytes) -> None:
        assert rebellions.read_document(data) is None

    def test_entries_that_cannot_be_read_leave_all_cards_open(self) -> None:
        document = rebellions.read_document(b'{"devices": [{"device": "rbln0"}], "contexts": []}')
        assert document is not None
        assert [gap.cards for gap in rebellions.read_contexts(document, ATOM).gaps] == [None]


class TestGenericCards:
    table = (
        CardClass("gaudi", re.compile(r"accel/accel\d+"), frozenset({"habanalabs"})),
        CardClass("acme", re.compile(r"acme(\d+)(?:pe\d)?")),
    )

    def node(self, path: str, minor: int, device: str = "", driver: str = "") -> Node:
        return Node(path, DeviceNumber(10, minor), device, driver)

    def test_nodes_of_one_pci_device_are_one_card(self) -> None:
        device = "/sys/devices/pci0000:00/0000:00:01.0/0000:65:00.0"
        nodes = [self.node("acme0", 1, device, "acme"), self.node("acme0pe1", 2, device, "acme")]
        (card,) = generic.cards(nodes, self.table)
        assert (card.id, card.bdf, card.model) == ("0000:65:00.0", "0000:65:00.0", "acme")
        assert card.compute == {DeviceNumber(10, 1), DeviceNumber(10, 2)}

    def test_the_driver_tells_vendors_with_equal_names_apart(self) -> None:
        nodes = [
            self.node("accel/accel0", 1, "/sys/x", "intel_vpu"),
            self.node("accel/accel1", 2, "/sys/y", "habanalabs"),
        ]
        assert [card.kernel_name for card in generic.cards(nodes, self.table)] == ["accel/accel1"]

    def test_management_nodes_and_other_devices_are_no_cards(self) -> None:
        assert generic.cards([self.node("null", 3), self.node("acme0ctl", 4)], self.table) == ()

    def test_a_device_without_a_pci_address_is_known_by_its_name(self) -> None:
        assert [card.id for card in generic.cards([self.node("acme7", 7)], self.table)] == ["acme7"]
