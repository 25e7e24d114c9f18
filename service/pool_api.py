"""The JSON API of the pool on the ops listener; `service/api.py` has its shapes."""

from collections.abc import Callable
from http import HTTPStatus

import msgspec
from aiohttp import web

from controllers.pool.explain import Explainer
from service import api


def pool_routes(
    explainer: Callable[[], Explainer], *, unknown: Callable[[], str | None]
) -> list[web.RouteDef]:
    """Answers from this replica's memory. `unknown` says why that is not complete yet, or None."""

    async def servers(_: web.Request) -> web.Response:
        return _complete(lambda: explainer().servers())

    async def pods(_: web.Request) -> web.Response:
        return _complete(lambda: explainer().pods())

    async def explain(request: web.Request) -> web.Response:
        asked = request.match_info
        return _complete(lambda: explainer().explain(asked["namespace"], asked["pod"]))

    def _complete(answer: Callable[[], api.Answer]) -> web.Response:
        """Half a pool would read as free cards and unknown pods."""
        why = unknown()
        if why is not None:
            return _json(api.Failure(why), HTTPStatus.SERVICE_UNAVAILABLE)
        return _json(answer(), HTTPStatus.OK)

    return [web.get(api.SERVERS, servers), web.get(api.PODS, pods), web.get(api.EXPLAIN, explain)]


DISABLED = "remote GPUs are off: pool.resource_count_name and pool.resource_memory_name are empty; name both"


def disabled_routes() -> list[web.RouteDef]:
    """The same addresses where the backend is disabled: its reason, not an empty pool."""

    async def answer(_: web.Request) -> web.Response:
        return _json(api.Failure(DISABLED), HTTPStatus.NOT_FOUND)

    return [web.get(path, answer) for path in (api.SERVERS, api.PODS, api.EXPLAIN)]


def _json(answer: api.Answer, status: HTTPStatus) -> web.Response:
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json", status=status)
