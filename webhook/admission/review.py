"""AdmissionReview v1 (admission.k8s.io): one typed decode, and the five answers there are.

Two channels (apiserver, mutating webhook dispatcher). HTTP 200 carries a decision about the user's pod: allow,
patched, deny; `allowed: false` rejects whatever the failure policy says. Every other HTTP status is a failed call,
for which the registration's failure policy decides: a call that cannot be understood (4xx), or a fault or time-out
of ours (5xx).
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

import msgspec

from service.objects import Projection
from webhook.admission.patch import Operation
from webhook.admission.pod import DECODE_FAILURES, BadCallError, Pod

API_VERSION: Final = "admission.k8s.io/v1"
KIND: Final = "AdmissionReview"


class Resource(Projection, frozen=True):
    """meta/v1 GroupVersionResource."""

    group: str = ""
    version: str = ""
    resource: str = ""


class Request(Projection, frozen=True):
    """admission/v1 AdmissionRequest. `namespace` is set even where the object's own is still empty."""

    uid: str
    operation: str = ""
    resource: Resource = Resource()
    sub_resource: str = ""
    namespace: str = ""
    object: Pod | None = None

    @property
    def creates_pod(self) -> bool:
        """True for CREATE of a pod itself; nothing else is changed or judged here."""
        return (
            self.operation == "CREATE"
            and self.resource.resource == "pods"
            and not self.resource.group
            and not self.sub_resource
        )


class Review(Projection, frozen=True):
    """admission/v1 AdmissionReview as the API server sends it."""

    api_version: str = ""
    kind: str = ""
    request: Request | None = None


class _Status(Projection, frozen=True):
    code: int
    reason: str
    message: str


class _Response(Projection, frozen=True):
    uid: str
    allowed: bool
    patch_type: str | None = None
    patch: bytes | None = None
    status: _Status | None = None
    warnings: Sequence[str] | None = None


class _Answer(Projection, frozen=True):
    response: _Response
    api_version: str
    kind: str


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An HTTP status and a body: JSON with 200, else one sentence."""

    status: int
    body: bytes


_decoder = msgspec.json.Decoder(Review)
_encoder = msgspec.json.Encoder()


def read(body: bytes | bytearray) -> Request:
    """The request in a review. Raises BadCallError."""
    try:
        review = _decoder.decode(body)
    except DECODE_FAILURES as error:
        raise BadCallError(f"the body is no AdmissionReview: {error}") from None
    if review.api_version != API_VERSION or review.kind != KIND:
        raise BadCallError(f"send {API_VERSION} {KIND}, not {review.api_version[:80]} {review.kind[:80]}")
    if review.request is None or not review.request.uid:
        raise BadCallError("the AdmissionReview has no request with a uid")
    return review.request


def allow(uid: str, warnings: Sequence[str] = ()) -> Answer:
    """Let the pod in as it is."""
    return _decided(_Response(uid, allowed=True, warnings=warnings or None))


def patched(uid: str, operations: Sequence[Operation], warnings: Sequence[str] = ()) -> Answer:
    """Let the pod in with these changes."""
    patch = _encoder.encode(operations)
    return _decided(
        _Response(uid, allowed=True, patch_type="JSONPatch", patch=patch, warnings=warnings or None)
    )


def deny(uid: str, sentence: str, warnings: Sequence[str] = ()) -> Answer:
    """Reject the pod; the user reads `sentence`."""
    status = _Status(HTTPStatus.FORBIDDEN, "Forbidden", sentence)
    return _decided(_Response(uid, allowed=False, status=status, warnings=warnings or None))


def bad_call(sentence: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> Answer:
    """The call failed for a cause that lies with the caller or the way; the failure policy decides."""
    return Answer(status, sentence.encode(errors="replace"))


def internal(sentence: str) -> Answer:
    """The call failed through a fault of ours; the failure policy decides."""
    return Answer(HTTPStatus.INTERNAL_SERVER_ERROR, sentence.encode())


def _decided(response: _Response) -> Answer:
    return Answer(HTTPStatus.OK, _encoder.encode(_Answer(response, API_VERSION, KIND)))
