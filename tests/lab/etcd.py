"""Objects put straight into etcd, for crowds: the API server would take minutes to create ten thousand."""

import base64
import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tests.lab.api import Api, Call, client_context
from tests.lab.lab import Lab

_OPERATIONS = 128  # etcd's limit for one transaction.


def put(lab: Lab, objects: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
    """Store objects under keys such as `/registry/pods/NAMESPACE/NAME`; the API server fills in defaults as it reads.

    Nothing validates them: whoever calls this answers for their shape, with uid and creationTimestamp.
    """
    etcd = _etcd(lab)
    pending = iter(objects)
    while some := list(itertools.islice(pending, _OPERATIONS)):
        puts = [
            {"requestPut": {"key": _base64(key.encode()), "value": _base64(msgspec.json.encode(found))}}
            for key, found in some
        ]
        etcd.ok(Call("POST", "/v3/kv/txn", {"success": puts}))


def delete_prefix(lab: Lab, prefix: str) -> None:
    """Remove every object whose key begins so."""
    span = {"key": _base64(prefix.encode()), "range_end": _base64(f"{prefix}~".encode())}
    _etcd(lab).ok(Call("POST", "/v3/kv/deleterange", span))


def _etcd(lab: Lab) -> Api:
    pair = lab._authority.client("etcd-client")
    return Api(lab._plane.etcd_url, client_context(lab._authority.certificate, pair))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
