"""Where the API server is and as whom we call it: the only user of kubernetes_asyncio.

That library knows kubeconfig files, credential plugins and service accounts. Its object models and its watch are
left aside on purpose: building models costs more than ten times the JSON, on the loop.
"""

import asyncio
import os
import ssl
import time
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import yaml
from kubernetes_asyncio.client import Configuration
from kubernetes_asyncio.config import ConfigException, load_incluster_config, load_kube_config

from service.kube.backoff import Clock
from service.kube.errors import ConfigError
from service.kube.transport import Endpoint
from service.settings import KubeSettings

if TYPE_CHECKING:
    from kubernetes_asyncio.config.kube_config import KubeConfigLoader

log = structlog.get_logger(__name__)

# Kubelet renews a pod's token at 80 % of its life; client-go (transport, token_source.go) reads it each minute.
MAX_AGE_S = 60.0

_ADVICE = "set TENURE_KUBE__KUBECONFIG or KUBECONFIG to a working one, or run in a pod with a service account"

# What the library raises for a source that is not usable, depending on what is wrong with it.
_UNUSABLE = (
    ConfigException,
    yaml.YAMLError,
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    AssertionError,
)


class Credentials:
    """A kubeconfig, or the pod's service account; read again each minute, because tokens are rotated."""

    def __init__(self, settings: KubeSettings, *, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._configuration = Configuration()
        self._loader: KubeConfigLoader | None = None
        self._file: str | None = None
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()

    async def endpoint(self) -> Endpoint:
        """Choose the source and read all of it. Raises ConfigError with one sentence that names what to set."""
        self._file = await asyncio.to_thread(_kubeconfig, self._settings)
        try:
            await self._read(anew=True)
            return await asyncio.to_thread(self._endpoint)
        except _UNUSABLE as error:
            source = f"the kubeconfig {self._file}" if self._file else "the service account of this pod"
            raise ConfigError(f"{source} cannot be used ({_why(error)}); {_ADVICE}") from error

    async def headers(self) -> dict[str, str]:
        """The headers that say who calls."""
        if self._old():
            await self.renew(anew=False)
        token = self._configuration.api_key.get("BearerToken")
        return {"Authorization": token} if token else {}

    async def renew(self, *, anew: bool) -> None:
        """Read the source again, or keep what we have. `anew` also forgets what a credential plugin said."""
        try:
            await self._read(anew=anew)
        except _UNUSABLE as error:
            self._read_at = self._clock()
            log.warning("credentials could not be read again", error=_why(error))

    async def _read(self, *, anew: bool) -> None:
        """The library reads files, and may run a plugin on a loop: both in a thread, away from our loop."""
        async with self._reading:
            if not anew and not self._old():
                return  # another call has just read it
            if self._file is None:
                await asyncio.to_thread(
                    load_incluster_config, client_configuration=self._configuration, try_refresh_token=False
                )
            elif self._loader is None or anew:
                read = load_kube_config(
                    self._file, client_configuration=self._configuration, persist_config=False
                )
                self._loader = await asyncio.to_thread(asyncio.run, read)
            else:
                await asyncio.to_thread(asyncio.run, self._loader.load_and_set(self._configuration))
            self._read_at = self._clock()

    def _old(self) -> bool:
        return self._clock() - self._read_at > MAX_AGE_S

    def _endpoint(self) -> Endpoint:
        found = self._configuration
        if not found.host:
            raise ConfigException("it names no server")
        tls = ssl.create_default_context(cafile=found.ssl_ca_cert)
        if found.cert_file:
            tls.load_cert_chain(found.cert_file, keyfile=found.key_file)
        if not found.verify_ssl:
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        if not self._settings.strict_x509:
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return Endpoint(found.host, tls, server_name=found.tls_server_name, proxy=found.proxy)


def _kubeconfig(settings: KubeSettings) -> str | None:
    """The file to read; None for the pod's service account."""
    if settings.kubeconfig is not None:
        return _existing(str(settings.kubeconfig))
    if named := os.environ.get("KUBECONFIG"):
        return _existing(named)
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return None
    return _existing(str(Path.home() / ".kube" / "config"))


def _why(error: Exception) -> str:
    """One line for people; what the library raises by accident would tell them nothing."""
    if isinstance(error, ConfigException | yaml.YAMLError | OSError):
        return " ".join(str(error).split())
    return "it does not have the shape that is expected"


def _existing(files: str) -> str:
    if any(Path(file).expanduser().is_file() for file in files.split(os.pathsep) if file):
        return files
    raise ConfigError(f"there is no kubeconfig {files}; {_ADVICE}")
