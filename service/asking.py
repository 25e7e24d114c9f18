"""How the reading commands get an answer from the server: at a URL, or through the API server's service proxy."""

from typing import Final, Protocol, TypeVar

import aiohttp
import msgspec

from service import api
from service.kube.client import KubeClient
from service.kube.errors import Forbidden, KubeError, NotFound, Unavailable
from service.kube.metrics import KubeMetrics
from service.metrics import MetricSet
from service.settings import KubeSettings

# Seconds; the answers come from memory, so whoever needs longer is not there.
DEADLINE_S: Final = 10.0

A = TypeVar("A", bound=api.Answer)


class NoAccessError(Exception):
    """What a command is to show cannot be had; the text is one sentence that says what to change."""


class Source(Protocol):
    """Where answers come from."""

    async def get(self, path: str) -> bytes:
        """The body of a 200. Raises NoAccessError."""
        ...


async def ask(source: Source, path: str, shape: type[A]) -> A:
    """One answer of the JSON API. Raises NoAccessError, ConfigError."""
    try:
        return msgspec.json.decode(await source.get(path), type=shape)
    except msgspec.MsgspecError as error:
        raise NoAccessError(
            f"what answered is not Tenure's ops listener, or of another version: {error}"
        ) from None


class AtUrl:
    """The ops listener itself, for example behind `kubectl port-forward`."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def get(self, path: str) -> bytes:
        """The body of a 200. Raises NoAccessError."""
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(self._url + path) as answer,
            ):
                body = await answer.read()
        except aiohttp.InvalidURL:
            raise NoAccessError(
                f"--server {self._url} is not a URL: give one such as http://localhost:8080"
            ) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or f"nothing within {DEADLINE_S:.0f} s"
            raise NoAccessError(f"no answer from {self._url} ({why}): is the server running there?") from None
        if not answer.ok:
            raise NoAccessError(f"{self._url}{path} answered {answer.status}: {_reason(body)}")
        return body


class ThroughApiServer:
    """The ops listener behind the proxy subresource of its Service, with the caller's own rights."""

    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings

    async def get(self, path: str) -> bytes:
        """The body of a 200. Raises NoAccessError, ConfigError."""
        client = await KubeClient.connect(self._settings, metrics=KubeMetrics(MetricSet()))
        namespace, service = self._settings.namespace, self._settings.ops_service
        proxy = f"/api/v1/namespaces/{namespace}/services/{service}/proxy"
        try:
            return await client.get(proxy + path, deadline=DEADLINE_S)
        except KubeError as error:
            raise NoAccessError(_sentence(error, namespace=namespace, service=service)) from None
        finally:
            await client.close()


def _sentence(error: KubeError, *, namespace: str, service: str) -> str:
    where = f"service {service} in namespace {namespace}"
    match error:
        case NotFound():
            return f"there is no {where}: give --namespace, or --server URL"
        case Forbidden():
            return f"you may not ask {where}: it takes the right to get services/proxy, or --server URL"
        case Unavailable():
            return f"no server answers behind {where}: is a pod of it ready?"
        case _:
            return f"the API server could not be asked ({error}): give --server URL, or another kubeconfig"


def _reason(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=api.Failure).error
    except msgspec.MsgspecError:
        return "no reason given"
