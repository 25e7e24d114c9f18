"""Sections of the server: how it reaches the API server and is reached, and how it leads and logs."""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from service.settings.fields import HostName, Lifetime, Port, PositiveSeconds, Seconds, Section


class KubeSettings(Section):
    """How to reach the API server."""

    kubeconfig: Path | None = None
    """File to use; empty: $KUBECONFIG, then the pod's own service account, then ~/.kube/config."""
    namespace: str = "tenure-system"
    """Namespace of Tenure's own objects: lease, CA Secret."""
    ops_service: str = "tenure:ops"
    """Service and port name of the ops listener, by which the reading commands find it through the API server."""
    deadline_s: PositiveSeconds = 10.0
    """Deadline of one API call. Admission never waits for one."""
    page_size: Annotated[int, Field(ge=10, le=1000)] = 250
    """Objects per list page; larger pages stall the loop longer while they are decoded."""
    watch_idle_s: PositiveSeconds = 80.0
    """A watch that is silent for longer is reconnected; the API server sends a bookmark about every 60 s."""
    strict_x509: bool = True
    """False for a cluster whose certificates lack key identifiers, which Python 3.13 and later refuse."""


class HttpSettings(Section):
    """The three listeners (design, section 5)."""

    webhook_host: str = "0.0.0.0"  # noqa: S104 - the API server calls from node addresses
    """Address that admission listens on."""
    webhook_port: Port = 9443
    """Admission, by TLS."""
    extender_host: str = "127.0.0.1"
    """Loopback: whoever may call `bind` may bind pods (design decision 8)."""
    extender_port: Port = 9444
    """Filter, preempt and bind of the scheduler."""
    ops_host: str = "0.0.0.0"  # noqa: S104 - Prometheus scrapes from other nodes
    """Address of metrics, health and pages."""
    ops_port: Port = 8080
    """Metrics, health, the status page and the JSON API."""
    drain_s: Seconds = 12.0
    """API servers go on using connections to a pod that ends; answers close them for this long."""

    @property
    def extender_beyond_loopback(self) -> bool:
        """True when others than this pod or machine can reach the extender: then it demands client certificates."""
        try:
            return not ip_address(self.extender_host).is_loopback
        except ValueError:
            return self.extender_host != "localhost"


class WebhookSettings(Section):
    """Admission."""

    deadline_s: PositiveSeconds = 3.0
    """Upper bound of one decision; the registration's timeout is 5 s."""
    scheduler_names: tuple[str, ...] = ()
    """Further schedulers that call Tenure's extender; a requesting pod may name one of them."""
    inject_visible_devices: bool = False
    """Also set CUDA_VISIBLE_DEVICES to the pod's card ids, for lupine versions that honour it (lupine 760)."""
    hide_local_cards: bool = False
    """Set NVIDIA_VISIBLE_DEVICES=void in containers that ask for remote cards only: on nodes whose default runtime
    is NVIDIA's, an image that sets it to `all` would see the local cards without having asked for them."""
    decision_accounts: tuple[str, ...] = ("system:serviceaccount:tenure-system:tenure-server",)
    """User names that may write decision keys."""
    configuration_name: str = "tenure"
    """Name of the MutatingWebhookConfiguration whose caBundle is kept up to date; empty: leave it alone."""


class LeaseSettings(Section):
    """Leader election of the cluster controllers; it saves work, it does not fence (design decision 1)."""

    name: str = "tenure"
    """Of the Lease, in the namespace `kube.namespace`."""
    duration_s: PositiveSeconds = 15.0
    """The others wait this long for a leader that fell silent."""
    renew_s: PositiveSeconds = 10.0
    """A leader that could not renew for so long ceases to lead."""
    retry_s: PositiveSeconds = 2.0
    """Between two tries."""

    @model_validator(mode="after")
    def _ordered(self) -> "LeaseSettings":
        if not self.retry_s < self.renew_s < self.duration_s:
            raise ValueError("set retry_s below renew_s, and renew_s below duration_s")
        return self


class CertSettings(Section):
    """The certificate of the TLS listeners."""

    mode: Literal["self", "files"] = "self"
    """self: a CA of our own in a Secret. files: somebody else (cert-manager, a person) puts them into `directory`."""
    secret_name: str = "tenure-ca"  # noqa: S105 - a name
    """Mode self: the Secret with the CA and its key, in the namespace `kube.namespace`."""
    service: str = "tenure-webhook"
    """Name of the Service before the webhook; certificates are made for NAME.NAMESPACE.svc."""
    names: tuple[HostName, ...] = ()
    """Further DNS names and IP addresses by which the listeners are called."""
    ca_lifetime_s: Lifetime = 10 * 365 * 86_400.0
    """Ten years; the next CA comes at two thirds of it, and both are trusted meanwhile."""
    leaf_lifetime_s: Lifetime = 7 * 86_400.0
    """A replica renews at two thirds of it: an API server out of reach for the last third does no harm."""
    directory: Path = Path("/etc/tenure/tls")
    """Mode files: tls.crt, tls.key, ca.crt (for the caBundle), client-ca.crt (for an extender beyond loopback)."""
    inject: bool = True
    """Keep the caBundle of `webhook.configuration_name` up to date; off where cert-manager's injector does it."""
    client_secret: str = ""
    """Mode self: a Secret to keep a client certificate for the scheduler in; empty: none."""

    @model_validator(mode="after")
    def _overlap(self) -> "CertSettings":
        if self.ca_lifetime_s < 3 * self.leaf_lifetime_s:
            raise ValueError("ca_lifetime_s must be at least three times leaf_lifetime_s")
        return self


class LogSettings(Section):
    """Logging."""

    format: Literal["json", "console"] = "json"
    """JSON lines, or text for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written."""
