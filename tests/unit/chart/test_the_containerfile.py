"""The Containerfile, as far as it can be judged without a container engine. The lab builds the image its own way."""

import re
import tomllib

from service.settings import HttpSettings
from tests.lab import product_images
from tests.lab.layout import REPOSITORY

LINES = (REPOSITORY / "Containerfile").read_text().splitlines()
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def arguments(instruction: str) -> list[list[str]]:
    return [line.split()[1:] for line in LINES if line.startswith(f"{instruction} ")]


def copied() -> set[str]:
    return {source for words in arguments("COPY") if "--from=build" not in words for source in words[:-1]}


def test_everything_that_is_copied_is_there_and_not_ignored() -> None:
    let_in = {
        line.removeprefix("!")
        for line in (REPOSITORY / ".containerignore").read_text().splitlines()
        if line.startswith("!")
    }
    assert copied() == let_in
    assert all((REPOSITORY / source).exists() for source in copied())


def test_every_package_of_the_project_is_copied() -> None:
    packages = {name.rstrip("*") for name in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages < copied()


def test_the_base_is_pinned_and_the_user_is_nobody() -> None:
    (base,) = arguments("ARG")
    assert re.search(r":\d+\.\d+\.\d+-", base[0])
    assert arguments("USER") == [[f"{product_images.USER}:{product_images.USER}"]]


def test_it_starts_the_project_s_program_and_names_its_ports() -> None:
    (entrypoint,) = arguments("ENTRYPOINT")
    assert entrypoint == [f'["{next(iter(PROJECT["project"]["scripts"]))}"]']
    http = HttpSettings()
    assert arguments("EXPOSE") == [[str(http.webhook_port), str(http.ops_port)]]
