"""The least that any webhook of this kind does, on the same listener: what admission's cost is compared with.

Typed decode, forged keys, one variable, the gate, encode; for a pod with one container that has an environment.
"""

from typing import Any

import msgspec
from aiohttp import web

from service import names
from webhook.admission.review import API_VERSION, KIND

BARE = "/bare"
_VARIABLE = {"name": names.LUPINE_SERVER_ENV, "value": "example:14833"}
_GATES = [{"name": names.GATE}]


class _Meta(msgspec.Struct):
    annotations: dict[str, str] = {}


class _Variable(msgspec.Struct):
    name: str


class _Container(msgspec.Struct):
    name: str
    env: list[_Variable]


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


class _Request(msgspec.Struct):
    uid: str
    object: _Pod


class _Review(msgspec.Struct):
    request: _Request


_decoder = msgspec.json.Decoder(_Review)
_encode = msgspec.json.Encoder().encode


async def bare(request: web.Request) -> web.Response:
    """Answer one review."""
    asked = _decoder.decode(await request.read()).request
    meta = asked.object.metadata
    forged = [key for key in meta.annotations if key.startswith(names.DECISION_KEYS)]
    patch: list[dict[str, Any]] = [{"op": "remove", "path": f"/metadata/annotations/{key}"} for key in forged]
    patch += [
        {"op": "add", "path": "/spec/containers/0/env/0", "value": _VARIABLE},
        {"op": "add", "path": "/spec/schedulingGates", "value": _GATES},
    ]
    response = {"uid": asked.uid, "allowed": True, "patchType": "JSONPatch", "patch": _encode(patch)}
    body = _encode({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return web.Response(body=body, content_type="application/json")
