"""What can go wrong between Tenure and the API server.

    KubeError
    ├── Unreachable            no connection, or it broke
    ├── DeadlineExceeded       no answer in time
    ├── Undecodable            an answer that does not have the shape it must have
    └── ApiError               the server said no
        ├── Unauthorized       401
        ├── Forbidden          403
        ├── NotFound           404: the object, its namespace, or the whole kind
        ├── Conflict           409: another resourceVersion, another uid, already bound
        │   └── AlreadyExists  409: somebody else created it first
        ├── Gone               410: a resourceVersion or a continue token that history forgot
        ├── Invalid            422
        ├── TooManyRequests    429
        └── Unavailable        5xx
            └── VersionTooLarge  504: a resourceVersion that this server has not seen yet

`outcome_unknown` is the question every writer must ask: True means that the write may have happened.
Read again before you act as if it had not (design decision 3).
"""
# ruff: noqa: N818 - the tree reads better in the API's own words than with Error behind each of them

from enum import StrEnum
from typing import ClassVar

import msgspec

# Enough for one sentence of the server; a whole HTML page of a proxy does not belong into a log line.
MESSAGE_LIMIT = 300


class Failure(StrEnum):
    """The kinds of failure as a closed label for metrics and reasons."""

    UNREACHABLE = "unreachable"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    UNDECODABLE = "undecodable"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    NOT_FOUND = "not_found"
    CONFLICT = "conflict"
    ALREADY_EXISTS = "already_exists"
    GONE = "gone"
    INVALID = "invalid"
    TOO_MANY_REQUESTS = "too_many_requests"
    UNAVAILABLE = "unavailable"
    VERSION_TOO_LARGE = "version_too_large"
    REFUSED = "refused"


class ConfigError(Exception):
    """The API server cannot be addressed; the text is one sentence that names what to set."""


class KubeError(Exception):
    """Base of all failures of a call to the API server."""

    kind: ClassVar[Failure]

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class Unreachable(KubeError):
    """The connection was not made (nothing happened), or it broke (a write may have happened)."""

    kind = Failure.UNREACHABLE


class DeadlineExceeded(KubeError):
    """No answer in time. The server may still carry the request out."""

    kind = Failure.DEADLINE_EXCEEDED


class Undecodable(KubeError):
    """Bytes that are not what the API promises."""

    kind = Failure.UNDECODABLE


class ApiError(KubeError):
    """A failure that the server reported: the fields of meta/v1 Status. `retry_after` in seconds."""

    kind = Failure.REFUSED

    def __init__(
        self,
        status: int,
        *,
        reason: str = "",
        message: str = "",
        retry_after: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(f"{status} {reason}: {message}", outcome_unknown=outcome_unknown)
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after


class Unauthorized(ApiError):
    """401: the token is missing, expired or unknown."""

    kind = Failure.UNAUTHORIZED


class Forbidden(ApiError):
    """403: RBAC or an admission policy refused."""

    kind = Failure.FORBIDDEN


class NotFound(ApiError):
    """404."""

    kind = Failure.NOT_FOUND


class Conflict(ApiError):
    """409. It does not say which precondition failed: read the object."""

    kind = Failure.CONFLICT


class AlreadyExists(Conflict):
    """409 for a create: the name is taken."""

    kind = Failure.ALREADY_EXISTS


class Gone(ApiError):
    """410: list again."""

    kind = Failure.GONE


class Invalid(ApiError):
    """422: the object itself is wrong; sending it again cannot help."""

    kind = Failure.INVALID


class TooManyRequests(ApiError):
    """429: nothing was done; come back after `retry_after`."""

    kind = Failure.TOO_MANY_REQUESTS


class Unavailable(ApiError):
    """5xx: the server could not do it, or could not tell whether it did."""

    kind = Failure.UNAVAILABLE


class VersionTooLarge(Unavailable):
    """504 for a read: this server is behind the resourceVersion that was asked for."""

    kind = Failure.VERSION_TOO_LARGE


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct, rename="camel"):
    causes: list[_Cause] = []
    retry_after_seconds: float | None = None


class Status(msgspec.Struct):
    """meta/v1 Status, as far as a caller can act on it."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: _Details | None = None


def from_response(code: int, body: bytes, *, retry_after: str | None = None, write: bool = False) -> ApiError:
    """The error for an HTTP answer that is not 2xx; `retry_after` is that header's text."""
    try:
        status = msgspec.json.decode(body, type=Status)
    except msgspec.MsgspecError:  # a proxy, or a path that no API serves
        status = Status(message=body[:MESSAGE_LIMIT].decode(errors="replace").strip())
    header = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
    return from_status(status, code=code, retry_after=header, write=write)


def from_status(
    status: Status, *, code: int | None = None, retry_after: float | None = None, write: bool = False
) -> ApiError:
    """The error for a Status object: the body of a failed call or of a watch's ERROR event."""
    details = status.details or _Details()
    number = status.code if code is None else code
    return _class_of(number, status.reason, details)(
        number,
        reason=status.reason,
        message=status.message[:MESSAGE_LIMIT],
        retry_after=details.retry_after_seconds if retry_after is None else retry_after,
        outcome_unknown=write and number >= 500,  # noqa: PLR2004 - HTTP's own border
    )


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}


def _class_of(code: int, reason: str, details: _Details) -> type[ApiError]:
    if code == 409 and reason == "AlreadyExists":  # noqa: PLR2004 - as in the table above
        return AlreadyExists
    if code >= 500:  # noqa: PLR2004 - HTTP's own border
        too_large = any(cause.reason == "ResourceVersionTooLarge" for cause in details.causes)
        return VersionTooLarge if too_large else Unavailable
    return _BY_STATUS.get(code, ApiError)
