"""What can be configured, and how a mistake is told."""

import re

import pytest

from controllers.occupancy.assemble import scanner_of
from controllers.occupancy.sources.generic import GenericSource
from controllers.occupancy.vendors.generic import BUILT_IN
from service import settings
from service.settings import OccupancySettings, SettingsError


@pytest.mark.parametrize("value", ["0", "false", "off", " OFF "])
def test_rm_accels_own_switch_turns_it_off(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    assert OccupancySettings().active
    monkeypatch.setenv("AIRM_OCCUPANCY", value)
    assert not OccupancySettings().active


def test_the_switch_cannot_turn_on_what_the_settings_turn_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRM_OCCUPANCY", "1")
    assert not OccupancySettings(enabled=False).active


def test_a_pattern_that_is_none_is_told_by_the_fields_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENURE_OCCUPANCY__CARDS", '[{"vendor": "acme", "nodes": "a("}]')
    with pytest.raises(SettingsError, match=r"occupancy\.cards\.0\.nodes .* is not a regular expression"):
        settings.load()


def test_kinds_of_cards_of_the_user_come_before_the_built_in_ones() -> None:
    own = settings.CardClass(vendor="mine", nodes=r"dri/renderD\d+", drivers=("amdgpu",))
    scanner = scanner_of(OccupancySettings(cards=(own,)))
    (generic,) = (source for source in scanner._sources if isinstance(source, GenericSource))
    assert [entry.vendor for entry in generic._classes][:2] == ["mine", "amd"]


@pytest.mark.parametrize(
    ("path", "driver", "vendor"),
    [
        ("dri/renderD128", "amdgpu", "amd"),
        ("dri/renderD129", "xe", "intel"),
        ("accel/accel0", "habanalabs", "gaudi"),
        ("hl3", "habanalabs", "gaudi"),
        ("accel/accel0", "intel_vpu", "intel-npu"),
        ("davinci7", "", "ascend"),
        ("tenstorrent/0", "", "tenstorrent"),
        ("dri/card0", "amdgpu", None),
        ("accel/accel_controlD0", "habanalabs", None),
        ("hl_controlD0", "habanalabs", None),
        ("davinci_manager", "", None),
        ("dri/renderD128", "virtio_gpu", None),
        ("kfd", "", None),
    ],
)
def test_the_built_in_table_knows_compute_nodes_and_leaves_management_nodes(
    path: str, driver: str, vendor: str | None
) -> None:
    fitting = [
        entry.vendor
        for entry in BUILT_IN
        if re.fullmatch(entry.nodes, path) and (not entry.drivers or driver in entry.drivers)
    ]
    assert fitting[:1] == ([vendor] if vendor else [])
