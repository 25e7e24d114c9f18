"""The documents lead where they say, and name what exists."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import Settings
from tests.chart.settings import fields
from tests.lab.layout import REPOSITORY

DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")])
PACKAGES = ("service", "webhook", "controllers", "certs")
SOURCES = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py")]


def links(document: Path) -> Iterator[str]:
    """Targets of links and pictures inside the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if not re.match(r"[a-z]+:", target):
            yield target


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(document: Path) -> None:
    for target in links(document):
        file, _, anchor = target.partition("#")
        found = (document.parent / file) if file else document
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_log_lines_and_metrics_that_operations_names_exist() -> None:
    text = (REPOSITORY / "docs" / "operations.md").read_text()
    code = "\n".join(path.read_text() for path in SOURCES)
    _, _, table = text.partition("| `event` | says |")
    rows = re.findall(r"^\| (`.+?) \| ", table.partition("\n\n")[0], re.MULTILINE)
    logged = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert len(logged) > 10
    for event in logged:
        assert f'"{event}' in code or f'{event}"' in code, event
    metrics = (REPOSITORY / "docs" / "metrics.md").read_text()
    for name in re.findall(r"\b((?:tenure|process|hami|rm_accel)_[a-z_]+)", text):
        assert f"`{name}`" in metrics, name


@pytest.mark.parametrize("name", ["operations.md", "security.md", "runbook.md"])
def test_settings_that_documents_name_exist(name: str) -> None:
    paths = "".join(f"\n{field.path}." for field in fields(Settings()))
    text = (REPOSITORY / "docs" / name).read_text()
    sections = "|".join(Settings.model_fields)
    named = set(re.findall(rf"`((?:{sections})\.\w+)", text))
    assert named
    for path in named:
        assert f"\n{path}." in paths, path
