import msgspec
import pytest

from service.kube import errors


def status_body(**fields: object) -> bytes:
    return msgspec.json.encode({"kind": "Status", "apiVersion": "v1", "status": "Failure", **fields})


@pytest.mark.parametrize(
    ("code", "reason", "expected"),
    [
        (401, "Unauthorized", errors.Unauthorized),
        (403, "Forbidden", errors.Forbidden),
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (429, "TooManyRequests", errors.TooManyRequests),
        (500, "InternalError", errors.Unavailable),
        (503, "ServiceUnavailable", errors.Unavailable),
        (400, "BadRequest", errors.ApiError),
    ],
)
def test_each_status_has_its_own_class(code: int, reason: str, expected: type[errors.ApiError]) -> None:
    error = errors.from_response(code, status_body(code=code, reason=reason, message="why"))
    assert type(error) is expected
    assert (error.status, error.reason, error.message) == (code, reason, "why")


def test_a_version_from_the_future_is_told_from_other_timeouts() -> None:
    body = status_body(
        code=504, reason="Timeout", details={"causes": [{"reason": "ResourceVersionTooLarge"}]}
    )
    error = errors.from_response(504, body, retry_after="1")
    assert type(error) is errors.VersionTooLarge
    assert error.retry_after == 1.0
    assert type(errors.from_response(504, status_body(code=504, reason="Timeout"))) is errors.Unavailable


def test_a_failed_write_is_unknown_only_when_the_server_may_have_carried_it_out() -> None:
    assert errors.from_response(503, b"", write=True).outcome_unknown
    assert not errors.from_response(503, b"").outcome_unknown
    assert not errors.from_response(409, b"", write=True).outcome_unknown
    assert not errors.from_response(429, b"", write=True).outcome_unknown


def test_the_pause_comes_from_the_header_or_from_the_body() -> None:
    assert errors.from_response(429, b"", retry_after="7").retry_after == 7.0
    assert errors.from_response(429, status_body(details={"retryAfterSeconds": 3})).retry_after == 3.0
    assert errors.from_response(429, b"", retry_after="Fri, 31 Dec 1999 23:59:59 GMT").retry_after is None


def test_an_answer_of_something_that_is_not_an_api_server_stays_short() -> None:
    error = errors.from_response(404, b"<html>" + b"x" * 10_000 + b"\xff")
    assert isinstance(error, errors.NotFound)
    assert len(error.message) <= errors.MESSAGE_LIMIT


def test_every_class_has_a_kind_of_its_own() -> None:
    classes: list[type[errors.KubeError]] = [
        errors.Unreachable,
        errors.DeadlineExceeded,
        errors.Undecodable,
        errors.ApiError,
    ]
    pending = list(errors.ApiError.__subclasses__())
    while pending:
        found = pending.pop()
        classes.append(found)
        pending.extend(found.__subclasses__())
    kinds = [found.kind for found in classes]
    assert sorted(kinds) == sorted(errors.Failure)
