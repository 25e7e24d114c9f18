from pathlib import Path

import pytest

from service import settings
from service.settings import SettingsError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenure.yaml"


def test_defaults_need_neither_file_nor_environment() -> None:
    assert settings.load().http.ops_port == 8080


def test_environment_is_stronger_than_the_file_and_the_file_than_defaults(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("http: {ops_port: 1111, webhook_port: 2222}\n")
    monkeypatch.setenv("TENURE_HTTP__OPS_PORT", "3333")
    http = settings.load(file).http
    assert (http.ops_port, http.webhook_port, http.extender_port) == (3333, 2222, 9444)


def test_all_errors_come_at_once_each_with_field_and_variable(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("http: {ops_port: 70000}\npool: {promise: 3}\n")
    monkeypatch.setenv("TENURE_LOG__LEVEL", "loud")
    with pytest.raises(SettingsError) as caught:
        settings.load(file)
    lines = str(caught.value).splitlines()
    assert len(lines) == 3
    for field, variable in [
        ("http.ops_port", "TENURE_HTTP__OPS_PORT"),
        ("pool.promise", "TENURE_POOL__PROMISE"),
        ("log.level", "TENURE_LOG__LEVEL"),
    ]:
        assert [line for line in lines if line.startswith(f"{field} ({variable}): ")]


def test_a_file_that_is_not_there_is_named(file: Path) -> None:
    with pytest.raises(SettingsError, match=r"tenure\.yaml cannot be read: No such file"):
        settings.load(file)


@pytest.mark.parametrize("text", ["http: [", "- a\n- b\n", "just words", "\x00"])
def test_a_file_that_is_not_a_yaml_mapping_is_one_sentence_with_its_name(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match=r"tenure\.yaml") as caught:
        settings.load(file)
    assert "\n" not in str(caught.value)


def test_an_empty_file_is_no_file(file: Path) -> None:
    file.write_text("")
    assert settings.load(file).model_dump() == settings.load().model_dump()


def test_a_file_that_may_not_be_read_is_one_sentence(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root, who runs these tests, may read everything
    with pytest.raises(SettingsError, match="Permission denied"):
        settings.load(file)
