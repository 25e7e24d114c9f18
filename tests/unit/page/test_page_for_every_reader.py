"""Who reads the status page: people with and without sight, in the light and in the dark."""

import re

import pytest

from service.page import view
from service.page.render import grouped
from tests.unit.page.reading import page, whole


async def test_a_screen_reader_finds_language_title_landmarks_and_headings() -> None:
    found = await page(whole())
    assert found.all("html") == [{"lang": "en"}]
    assert "4 of 16 cards free - Tenure" in found.text
    for landmark in ("header", "nav", "main", "footer"):
        assert len(found.all(landmark)) == 1
    assert len(found.all("h1")) == 1
    named = {attributes.get("id") for _, attributes in found.tags}
    for section in found.all("section"):
        assert section.get("aria-label") or section.get("aria-labelledby") in named
    for link in found.all("a"):
        href = link.get("href") or ""
        assert not href.startswith("#") or href[1:] in named
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


async def test_every_table_has_a_caption_and_every_header_a_scope() -> None:
    found = await page(whole())
    assert len(found.all("table")) == len(found.all("caption")) == 5
    assert {header.get("scope") for header in found.all("th")} == {"col", "row", "rowgroup"}


async def test_colour_is_never_alone_each_state_is_a_word_and_the_bar_has_a_text() -> None:
    found = await page(whole())
    assert found.source.count('class="state free">free</span>') >= 4
    (bar,) = found.all("svg")
    assert bar["aria-label"] == "Of 16 cards: 4 free, 2 promised, 6 held, 2 draining, 2 unknown"
    assert bar["role"] == "img"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(scheme: str) -> None:
    """WCAG 2.2, success criterion 1.4.3: 4.5 to 1."""
    css = (view.__file__.rpartition("/")[0]) + "/page.css"
    with open(css) as file:  # noqa: PTH123 - a test
        blocks = re.findall(r":root \{(.*?)\}", file.read(), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", blocks[scheme == "dark"]))
    for ink in ("ink", "soft", "link", "free", "reserved", "bound", "draining", "unknown"):
        for ground in ("paper", "sheet"):
            assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)


def contrast(one: str, other: str) -> float:
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """WCAG 2.2, "relative luminance"."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3725, "1 h 2 min"),
        (3600, "1 h"),
        (90_061, "1 d 1 h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert view.duration(seconds).replace("\N{NO-BREAK SPACE}", " ") == text


def test_thousands_stand_apart() -> None:
    assert grouped(1_234_567) == "1\N{NO-BREAK SPACE}234\N{NO-BREAK SPACE}567"
