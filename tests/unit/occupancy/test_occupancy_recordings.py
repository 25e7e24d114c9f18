"""Every recording of a vendor's tool gives the holders that were there."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from controllers.occupancy.cards import Card, DeviceNumber, pci_address
from controllers.occupancy.evidence import Findings, Why
from controllers.occupancy.vendors import furiosa, nvidia, nvidia_smi, rebellions

FIXTURES = Path(__file__).parents[2] / "fixtures"
RNGD = [Card("furiosa", f"0000:{n:02x}:00.0", f"npu{n}", bdf=f"0000:{n:02x}:00.0") for n in range(8)]
H200 = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"


def held(findings: Findings, cards: list[Card] | tuple[Card, ...]) -> dict[str, set[tuple[int, str]]]:
    by_id = {card.id: card.kernel_name for card in cards}
    seen: dict[str, set[tuple[int, str]]] = {}
    for sighting in findings.sightings:
        seen.setdefault(by_id[sighting.card], set()).add((sighting.pid, sighting.command))
    return seen


class TestFuriosa:
    def test_two_host_holders(self) -> None:
        data = (FIXTURES / "furiosa/furiosa-smi-ps.two-host-holders.json").read_bytes()
        findings = furiosa.read_ps(data, RNGD)
        assert held(findings, RNGD) == {"npu0": {(37839, "python3")}, "npu1": {(38166, "python3")}}
        assert findings.gaps == ()

    def test_one_record_holds_several_cards_and_older_names_are_read(self) -> None:
        data = (FIXTURES / "furiosa/furiosa-smi-ps.variants.json").read_bytes()
        findings = furiosa.read_ps(data, RNGD)
        four = {name: {(4242, "python3")} for name in ("npu4", "npu5", "npu6", "npu7")}
        assert held(findings, RNGD) == four | {"npu2": {(77, "bench")}, "npu3": {(78, "legacy")}}
        assert findings.gaps == ()

    def test_a_hidden_pid_namespace_shows_nobody_and_that_is_all_it_shows(self) -> None:
        data = (FIXTURES / "furiosa/furiosa-smi-ps.pid-namespace-hidden.json").read_bytes()
        assert furiosa.read_ps(data, RNGD) == Findings()


class TestRebellions:
    def loaded(self) -> tuple[rebellions.Document, list[Card]]:
        data = (FIXTURES / "rebellions/rbln-stat.loaded-8-cards.json").read_bytes()
        document = rebellions.read_document(data)
        assert document is not None
        return document, [Card("rebellions", d.bdf, d.name, bdf=d.bdf) for d in document.devices]

    def test_contexts_are_given_to_cards_whose_number_is_theirs_alone(self) -> None:
        document, cards = self.loaded()
        findings = rebellions.read_contexts(document, cards)
        engine = {(2733390, "VLLM::EngineCore")}
        assert held(findings, cards) == {"rbln6": engine, "rbln7": engine}

    def test_contexts_on_a_number_that_several_cards_bear_leave_these_cards_open(self) -> None:
        document, cards = self.loaded()
        names = {card.id: card.kernel_name for card in cards}
        gaps = rebellions.read_contexts(document, cards).gaps
        zero, one = {"rbln0", "rbln2", "rbln5", "rbln1"}, {"rbln3", "rbln4"}
        assert {(gap.pid, frozenset(names[c] for c in gap.cards or ())) for gap in gaps} == {
            (957143, frozenset(zero)),
            (2733390, frozenset(zero)),
            (4189859, frozenset(zero)),
            (1165830, frozenset(zero)),
            (2733390, frozenset(one)),
        }
        assert {gap.why for gap in gaps} == {Why.UNATTRIBUTED}

    def test_an_idle_node_has_no_holders_whatever_its_memory_says(self) -> None:
        data = (FIXTURES / "rebellions/rbln-stat.idle-4-cards.json").read_bytes()
        document = rebellions.read_document(data)
        assert document is not None
        assert [device.name for device in document.devices] == ["rbln0", "rbln1", "rbln2", "rbln3"]
        cards = [Card("rebellions", d.bdf, d.name, bdf=d.bdf) for d in document.devices]
        assert rebellions.read_contexts(document, cards) == Findings()


class TestNvidia:
    folder = FIXTURES / "nvidia"

    def card(self) -> Card:
        card = nvidia.read_information((self.folder / "gpu-information.txt").read_text())
        assert card is not None
        return card

    def test_the_driver_names_the_card(self) -> None:
        card = self.card()
        assert (card.id, card.bdf, card.model, card.kernel_name) == (
            H200,
            "0000:00:06.0",
            "NVIDIA H200",
            "nvidia0",
        )
        listed = (self.folder / "dev-nodes.txt").read_text()
        assert card.compute == {DeviceNumber(195, 0)}
        assert "195,   0 Nov 29 21:54 /dev/nvidia0" in listed

    def test_nvidia_smi_lists_the_card_with_whatever_columns(self) -> None:
        (gpu,) = nvidia_smi.read_gpus((self.folder / "gpus.csv").read_bytes())
        assert (gpu.uuid, gpu.bdf, gpu.mig) == (H200, "0000:00:06.0", False)

    def test_four_processes_hold_the_card(self) -> None:
        gpus = nvidia_smi.read_gpus((self.folder / "gpus.csv").read_bytes())
        apps = nvidia_smi.read_apps((self.folder / "compute-apps.csv").read_bytes())
        findings = nvidia_smi.from_smi(nvidia_smi.SmiAnswer(gpus, apps), [self.card()])
        expected = {(pid, "workload") for pid in (704, 705, 706, 708)}
        assert held(findings, [self.card()]) == {"nvidia0": expected}
        assert findings.gaps == ()

    def test_the_other_forms_of_the_same_moment_name_the_same_processes(self) -> None:
        rows = nvidia_smi.read_apps((self.folder / "compute-apps.csv").read_bytes()).rows
        pids = {pid for _, pid, _ in rows}
        tree = ET.parse(self.folder / "nvidia-smi-q.xml")  # noqa: S314 - our own recording
        compute = [info for info in tree.iter("process_info") if info.findtext("type") == "C"]
        assert {int(info.findtext("pid") or 0) for info in compute} == pids
        pmon = (self.folder / "pmon.txt").read_text().splitlines()
        assert {int(line.split()[1]) for line in pmon if not line.startswith("#")} == pids


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("00000000:65:00.0", "0000:65:00.0"),
        ("0000:AF:1f.7", "0000:af:1f.7"),
        ("10000:01:00.0", ""),
        ("npu0", ""),
    ],
)
def test_pci_addresses_are_read_in_all_lengths(text: str, address: str) -> None:
    assert pci_address(text) == address
