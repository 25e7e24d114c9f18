"""The program's settings as a person reads them: field, environment variable, default, and its text."""

import ast
import inspect
import json
from collections import ChainMap
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from service.settings import Settings
from tests.lab.layout import REPOSITORY

DOCUMENT: Final = REPOSITORY / "docs" / "settings.md"
_INTRODUCTION: Final = """\
# Settings of the program

Made of `service/settings` by `make generate`. A variable of the environment is stronger than the file that
`--config` names; lists and groups are JSON there. The chart writes that file: its value `settings` takes any of these
fields, such as `settings.pool.promise_s`. All that is wrong is told at once, by the field's name.

| field | environment | default | what it is |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True)
class Field:
    """One setting, by its dotted path."""

    path: str
    default: Any
    text: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return "TENURE_" + self.path.upper().replace(".", "__")


def table() -> str:
    """docs/settings.md."""
    return _INTRODUCTION + "".join(_row(field) for field in fields(Settings()))


def _row(field: Field) -> str:
    default = json.dumps(to_jsonable_python(field.default), ensure_ascii=False)
    return f"| `{field.path}` | `{field.variable}` | `{default}` | {field.text.replace('|', '&#124;')} |\n"


def fields(model: BaseModel, parent: str = "") -> Iterator[Field]:
    """Every leaf of the tree, in its order."""
    texts = ChainMap(
        *(_texts(kind) for kind in type(model).__mro__ if kind.__module__.startswith("service."))
    )
    for name in type(model).model_fields:
        found, path = getattr(model, name), f"{parent}{name}"
        if isinstance(found, BaseModel):
            yield from fields(found, f"{path}.")
        else:
            yield Field(path, found, texts.get(name, ""))


def _texts(kind: type) -> dict[str, str]:
    """The string below each field of a class, by field: Python itself forgets it."""
    (found,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(found, ast.ClassDef)
    return dict(_below_fields(found.body))


def _below_fields(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(found))):
                yield name, " ".join(found.split())
            case _:
                continue
