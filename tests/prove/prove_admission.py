"""Admission against hostile and broken input: `make prove ONLY=admission_malformed`.

Reviews are damaged in every way that bytes, JSON and types can be, and sent through TLS to the product's own listener.
Each has an answer: a decision (200) or a sentence (400, 413, 415), never a fault (5xx) and never a closed connection
without one; the webhook's log stays empty and its memory flat.
"""

import copy
import json
import random
from collections.abc import Callable
from typing import Any, Final

from tests.cluster.admission_client import Caller
from tests.cluster.admission_server import Webhook, serving
from tests.prove.proofs import Run, proof
from tests.unit.admission.pods import CARD, Json, admission, container, pod

REVIEWS: Final = 100_000
# Between two looks at the process; a leak of 1 KiB a review would be 19 MiB by then.
LOOK_EVERY: Final = 20_000
# The allocator keeps what one large review took; from then on nothing may be added.
MEMORY_MIB: Final = 24.0
DEFINED: Final = frozenset({200, 400, 413, 415})

SEEDS: Final = [
    pod(container(limits=CARD, env=[{"name": "LUPINE_SERVER", "value": "x"}])),
    pod(
        container(
            limits={"nvidia.com/vgpu-number": "1"},
            volumeMounts=[{"name": "data", "mountPath": "/tmp", "readOnly": True}],
        ),
        container("b", CARD | {"hami.io/remote-gpu-memory": "8192"}),
        initContainers=[container("i", CARD, restartPolicy="Always")],
        volumes=[{"name": "data", "emptyDir": {}}],
        annotations={
            "hami.io/lupine-endpoint": "x",
            "tenure.dev/regions": "b",
            "allocation.tenure.dev/a~/": "",
        },
        labels={"allocation.tenure.dev/b": "y"},
        schedulingGates=[{"name": "tenure.dev/remote-gpu"}],
    ),
    pod(),
]
ODD: Final[list[Any]] = [
    *(None, True, False, 0, -1, 1, 1.5, 1e308, 2**63, 10**400, "", "1", "null", "\u0000", "\ud800", "\u202e"),
    *([], {}, [[]], [None], {"": None}, "x" * 70_000, [{}] * 300, {"a": {"b": {"c": []}}}),
    *(
        "1e999999999",
        "99999999999999999999",
        "-0",
        "0.5",
        "1Ki",
        "½",
        "٣",
        "/tmp/../../tmp/.sm_node",
        "a\nb\x1b[31m",
    ),
]


def paths(value: Any, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Where every value of a document is."""
    found = [at]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*at, key))
    return found


def parent(document: Any, path: tuple[str | int, ...]) -> Any:
    for key in path[:-1]:
        document = document[key]
    return document


def odd_value(rng: random.Random, review: Json) -> None:
    path = rng.choice(paths(review)[1:])
    parent(review, path)[path[-1]] = copy.deepcopy(rng.choice(ODD))


def missing_value(rng: random.Random, review: Json) -> None:
    path = rng.choice(paths(review)[1:])
    del parent(review, path)[path[-1]]


def doubled_item(rng: random.Random, review: Json) -> None:
    holder = parent(review, rng.choice(paths(review)[1:]))
    if isinstance(holder, list):
        holder.append(copy.deepcopy(rng.choice(holder)))
    else:
        holder[rng.choice(["x", "", "name", "spec", "metadata", "object"])] = copy.deepcopy(rng.choice(ODD))


def moved_value(rng: random.Random, review: Json) -> None:
    to, value = rng.choice(paths(review)[1:]), copy.deepcopy(rng.choice(SEEDS))
    parent(review, to)[to[-1]] = value


def text_is_number(rng: random.Random, review: Json) -> None:
    path = rng.choice(paths(review)[1:])
    holder, key = parent(review, path), path[-1]
    if isinstance(holder[key], str):
        holder[key] = rng.choice([0, 7, 1.25, True])


DAMAGES: Final[list[Callable[[random.Random, Json], None]]] = [
    odd_value,
    missing_value,
    doubled_item,
    moved_value,
    text_is_number,
]


def cut(rng: random.Random, body: bytes) -> bytes:
    return body[: rng.randrange(len(body))]


def flipped(rng: random.Random, body: bytes) -> bytes:
    found = bytearray(body)
    for _ in range(rng.randrange(1, 6)):
        found[rng.randrange(len(found))] = rng.randrange(256)
    return bytes(found)


def inserted(rng: random.Random, body: bytes) -> bytes:
    at = rng.randrange(len(body))
    piece = rng.choice(
        [rng.randbytes(rng.randrange(1, 40)), b"\xff\xfe", b'"', b"}", b"[" * 2000, b"\\u0000", b"{" * 9]
    )
    return body[:at] + piece + body[at:]


def doubled_key(rng: random.Random, body: bytes) -> bytes:
    at = body.find(b'"uid"', rng.randrange(len(body)))
    return body if at < 0 else body[:at] + b'"uid": "other", ' + body[at:]


def deep(rng: random.Random, body: bytes) -> bytes:
    opening = rng.choice([b"[", b'{"a":', b'{"object":', b'{"spec":'])
    return body[:-1] + b',"x":' + opening * rng.choice([10, 500, 5_000, 100_000])


def large(rng: random.Random, body: bytes) -> bytes:
    return body + b" " * (rng.choice([1, 6, 8]) * 1024 * 1024)


def whole(_: random.Random, body: bytes) -> bytes:
    return body


# Weights: large and deep bodies cost the caller much, and say little more the hundredth time.
BYTES: Final = [whole, cut, flipped, inserted, doubled_key, deep, large]
WEIGHTS: Final = [60, 10, 12, 12, 4, 1.9, 0.1]
KINDS: Final = ["application/json"] * 30 + [
    "text/plain",
    "application/json; charset=utf-8",
    "application/json,x",
    "💥",
]


def damaged(rng: random.Random) -> bytes:
    """One review, damaged."""
    review = admission(copy.deepcopy(rng.choice(SEEDS)))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 4])):
        rng.choice(DAMAGES)(rng, review)
        if not isinstance(review.get("request"), dict):
            break
    (damage,) = rng.choices(BYTES, WEIGHTS)
    return damage(rng, json.dumps(review).encode(errors="surrogatepass"))


def wrong(status: int, answer: bytes) -> str | None:
    """What is wrong with an answer."""
    if status not in DEFINED:
        return f"status {status}: {answer[:200]!r}"
    if status != 200:
        return None if answer and b"Traceback" not in answer else f"status {status} without a sentence"
    response = json.loads(answer)["response"]
    if not response["uid"] or not isinstance(response["allowed"], bool):
        return f"no decision: {answer[:200]!r}"
    return None if response["allowed"] or response["status"]["message"] else "refused without a sentence"


@proof("admission_malformed")
async def no_review_is_without_an_answer(run: Run) -> None:
    with serving() as webhook:
        async with Caller(webhook.port, webhook.context) as caller:
            floor = 0.0
            for rng in run.trials(REVIEWS):
                body, kind = damaged(rng), rng.choice(KINDS)
                try:
                    found = wrong(*await caller.call(body, kind=kind))
                except (OSError, EOFError) as error:
                    found = f"no answer: {error!r}"
                run.check(found is None, f"{found}; sent {body[:300]!r}")
                if run.tried % LOOK_EVERY == 0:
                    floor = floor or webhook.cost().resident_mib
                    _look(run, webhook, floor)


def _look(run: Run, webhook: Webhook, floor_mib: float) -> None:
    cost = webhook.cost()
    run.check(cost.errors == 0, f"the webhook's log: {webhook.log.read_text()[:2000]}")
    grown = cost.resident_mib - floor_mib
    run.check(grown < MEMORY_MIB, f"resident memory grew by {grown:.1f} MiB since the first look")
