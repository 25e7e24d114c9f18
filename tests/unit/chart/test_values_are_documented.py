"""values.yaml is the one place where values are described; table and schema are made of it."""

import json
import re

import pytest

from service.settings import Settings
from tests.chart import settings
from tests.chart.schema import schema
from tests.chart.values import CHART, DOCUMENT, Value, table, values

TEXT = (CHART / "values.yaml").read_text()
# Handed on in one piece.
WHOLE = {"certificates.issuerRef": "certificates.issuerRef"}
TEMPLATES = "\n".join(path.read_text() for path in (CHART / "templates").rglob("*.*"))


def test_the_table_of_values_is_what_make_generate_writes() -> None:
    assert DOCUMENT.read_text() == table(TEXT), "run `make generate`"


def test_the_schema_is_what_make_generate_writes() -> None:
    assert json.loads((CHART / "values.schema.json").read_text()) == schema(TEXT), "run `make generate`"


def test_the_table_of_settings_is_what_make_generate_writes() -> None:
    assert settings.DOCUMENT.read_text() == settings.table(), "run `make generate`"


@pytest.mark.parametrize("field", list(settings.fields(Settings())), ids=lambda field: field.path)
def test_every_setting_has_a_text_below_it(field: settings.Field) -> None:
    assert field.text


@pytest.mark.parametrize("value", values(TEXT), ids=lambda value: value.path)
def test_every_value_has_a_comment_of_its_own(value: Value) -> None:
    assert value.text


@pytest.mark.parametrize("value", values(TEXT), ids=lambda value: value.path)
def test_every_value_is_read_by_a_template(value: Value) -> None:
    path = WHOLE.get(value.path.rpartition(".")[0], value.path)
    name = path.rpartition(".")[2]
    assert re.search(rf"\.{name}\b", TEMPLATES), "no template reads it"


def test_a_value_file_is_read_with_its_comments_and_defaults() -> None:
    text = "# Group.\na:\n  # First\n  # of two.\n  b: [1, 2]\n\n  # Lost.\n\n  c: {d: e}\nf: 1\n"
    assert values(text) == [
        Value("a.b", [1, 2], "First of two."),
        Value("a.c", {"d": "e"}, ""),
        Value("f", 1, ""),
    ]
