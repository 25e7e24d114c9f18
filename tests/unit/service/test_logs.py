import asyncio
import io
import json
import logging
import warnings
from typing import Any

import pytest
import structlog

from service import logs


class KubeError(Exception):
    """An expected error of another layer."""


def events(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_is_one_json_line_with_its_fields(log_stream: io.StringIO) -> None:
    structlog.get_logger("service.test").info("cards promised", pod="a/b", cards=2)
    (event,) = events(log_stream)
    assert event.pop("timestamp").endswith("Z")
    assert event == {
        "level": "info",
        "event": "cards promised",
        "logger": "service.test",
        "pod": "a/b",
        "cards": 2,
    }


def test_records_of_the_standard_library_take_the_same_way(log_stream: io.StringIO) -> None:
    logging.getLogger("aiohttp.server").warning("late by %d ms", 3, extra={"peer": "10.0.0.1"})
    (event,) = events(log_stream)
    assert (event["level"], event["event"]) == ("warning", "late by 3 ms")
    assert (event["logger"], event["peer"]) == ("aiohttp.server", "10.0.0.1")


def test_warnings_of_python_take_the_same_way(log_stream: io.StringIO) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=False)
        logging.captureWarnings(capture=True)
        warnings.warn("old", stacklevel=1)
    (event,) = events(log_stream)
    assert event["logger"] == "py.warnings"


def test_what_is_below_the_level_is_not_written(log_stream: io.StringIO) -> None:
    logs.configure(stream=log_stream, level="warning")
    structlog.get_logger().info("quiet")
    logging.getLogger("asyncio").info("quiet")
    assert log_stream.getvalue() == ""


def test_a_bug_brings_its_traceback_in_the_same_line(log_stream: io.StringIO) -> None:
    try:
        [].pop()
    except IndexError:
        structlog.get_logger().exception("task ended unexpectedly")
    (event,) = events(log_stream)
    assert event["error"] == "IndexError: pop from empty list"
    assert event["traceback"].startswith("Traceback")
    assert "exc_info" not in event


@pytest.mark.parametrize("error", [ConnectionResetError("peer went"), TimeoutError("10 s"), KubeError("503")])
def test_an_expected_error_is_one_line_without_traceback(log_stream: io.StringIO, error: Exception) -> None:
    logs.configure(stream=log_stream, expected=[KubeError])
    structlog.get_logger().warning("watch broke", exc_info=error)
    logging.getLogger("asyncio").error("Task exception was never retrieved", exc_info=error)
    ours, theirs = events(log_stream)
    assert ours["error"] == theirs["error"] == f"{type(error).__name__}: {error}"
    assert "traceback" not in ours
    assert "traceback" not in theirs


def test_a_task_whose_error_nobody_fetched_is_one_line(log_stream: io.StringIO) -> None:

    async def forgotten() -> None:
        asyncio.get_running_loop().call_exception_handler(
            {"message": "connection lost", "exception": ConnectionResetError("peer went")}
        )

    asyncio.run(forgotten())
    (event,) = events(log_stream)
    assert "traceback" not in event
    assert event["error"] == "ConnectionResetError: peer went"


PEM = "-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJ0ZW5hbnQifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("fields", "secret"),
    [
        ({"token": "hunter2"}, "hunter2"),
        ({"db_password": "hunter2"}, "hunter2"),
        ({"headers": {"Authorization": "Basic aHVudGVyMg=="}}, "aHVudGVyMg"),
        ({"header": "Bearer abc.def"}, "abc.def"),
        ({"answer": f"no such user {JWT}"}, "c2lnbmF0dXJl"),
        ({"text": f"loaded {PEM} from file"}, "MHcCAQEE"),
        ({"lines": [{"text": PEM}]}, "MHcCAQEE"),
        ({"exc_info": RuntimeError(f"cannot parse {PEM}")}, "MHcCAQEE"),
    ],
)
def test_secrets_do_not_leave(log_stream: io.StringIO, fields: dict[str, Any], secret: str) -> None:
    structlog.get_logger().error("event", **fields)
    assert secret not in log_stream.getvalue()
    assert logs.REDACTED in log_stream.getvalue()


def test_long_text_is_cut(log_stream: io.StringIO) -> None:
    structlog.get_logger().info("event", body="x" * 100_000)
    assert len(log_stream.getvalue()) < logs.TEXT_LIMIT + 200


@pytest.mark.parametrize("style", ["json", "console"])
def test_a_process_name_cannot_write_to_the_terminal_or_forge_a_line(
    log_stream: io.StringIO, style: Any
) -> None:
    logs.configure(stream=log_stream, style=style)
    structlog.get_logger().info("holder seen", comm='\x1b[2J\r\n{"event": "forged"}')
    assert "\x1b[2J" not in log_stream.getvalue()
    assert "\r" not in log_stream.getvalue()
    assert len(log_stream.getvalue().splitlines()) == 1


def test_console_lines_are_for_people(log_stream: io.StringIO) -> None:
    logs.configure(stream=log_stream, style="console")
    structlog.get_logger("service.app").info("ready", port=8080)
    assert "ready" in log_stream.getvalue()
    assert "port=8080" in log_stream.getvalue()
