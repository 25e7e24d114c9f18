"""One settings tree for every command.

Sources, strongest first: `TENURE_SECTION__FIELD` in the environment, then the YAML file named by `--config`, then
the defaults below. All errors are reported at once, by the field's name.
"""

import os
import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from service import names

Port = Annotated[int, Field(ge=0, le=65535)]
Seconds = Annotated[float, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
_DNS_NAME = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def _host_name(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        if not _DNS_NAME.fullmatch(text):
            raise ValueError(f"{text!r} is neither an IP address nor a DNS name in lower case") from None
        return text


HostName = Annotated[str, Field(max_length=253), AfterValidator(_host_name)]


class SettingsError(Exception):
    """The configuration cannot be used; each line of the text names one field and what is wrong with it."""


class Section(BaseModel):
    """A group of settings: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


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


class RegionSettings(Section):
    """vGPU regions, for the webhook (injection) and the node agent (CSI volumes, cleaning)."""

    resources: tuple[str, ...] = (
        "nvidia.com/vgpu-number",
        "nvidia.com/vgpu-cores",
        "nvidia.com/vgpu-memory",
    )
    """Containers that ask for one of these get region volumes."""
    backend: Literal["csi", "hostPath", "off"] = "csi"
    """csi: a volume per container. hostPath: for clusters without the driver."""
    root: Path = Path("/etc/vgpu-manager")
    """Folder on the node with one `<pod-uid>_<container>` folder per container."""
    kubelet_root: Path = Path("/var/lib/kubelet")
    """Kubelet's --root-dir: its plugin sockets and the pods' volumes lie below."""
    folder_limit_kib: Annotated[int, Field(ge=0)] = 1024
    """Size of each region folder, a file system in memory: a tenant fills no more. The regions of today need 320 KiB.
    0: plain folders on the node's disk, without a bound."""
    sweep_s: PositiveSeconds = 10.0
    """Between two looks at all regions. What is urgent, a container's end, is seen at once and needs no look."""
    leftover_grace_s: PositiveSeconds = 120.0
    """How long a folder is unused before the API server is asked whether its pod still exists."""
    unpublish_only: bool = False
    """Make no new volumes, take existing ones away: for a node that Tenure is about to leave."""
    refuse_when_restricted: bool = False
    """hostPath backend only: refuse a pod whose namespace forbids it, instead of a warning and no regions."""


class PoolSettings(Section):
    """Remote GPUs."""

    resource_count_name: str = names.REMOTE_GPU
    """The resource that counts cards."""
    resource_memory_name: str = names.REMOTE_GPU_MEMORY
    """Both empty: the backend is disabled."""
    placement: Literal["extender", "dra"] = "extender"
    """Who hands out the cards; dra is not built yet."""
    policy: Literal["binpack", "spread"] = "binpack"
    """Fill one server after the other, or take the emptiest."""
    remote_mode: str = "remote"
    """The `mode` of a registered card that is served over the network."""
    lupine_port: Annotated[int, Field(ge=1, le=65535)] = names.LUPINE_PORT
    """Of a server that names no endpoint of its own."""
    local_resources: tuple[str, ...] = ("nvidia.com/gpu",)
    """Where a server's kubelet still advertises one of these, a HAMi scheduler that does not know mode `remote` may
    give the same cards to local pods: such nodes get a warning."""
    promise_s: PositiveSeconds = 300.0
    """An unused promise may pass on after this time (design decision 4)."""
    cool_down_s: Seconds = 0.0
    """How long a released card stays Draining where no node agent looks at it."""
    silent_agent_s: PositiveSeconds = 120.0
    """A card whose agent fell silent leaves Draining after this time; a dead client was seen for 110 s."""
    starvation_s: PositiveSeconds = 600.0
    """After this wait a server is kept free for a pod that needs more cards than are free at once."""
    read_deadline_s: PositiveSeconds = 1.0
    """Deadline of the consistent read before `filter` rejects a pod that the cache does not know."""

    @property
    def enabled(self) -> bool:
        """False when the resource names are empty: then no pod can ask for a remote card."""
        return bool(self.resource_count_name)

    @model_validator(mode="after")
    def _built(self) -> "PoolSettings":
        if self.placement == "dra":
            raise ValueError("placement: dra is not built yet; use placement: extender")
        if bool(self.resource_count_name) != bool(self.resource_memory_name):
            raise ValueError("set resource_count_name and resource_memory_name both, or leave both empty")
        if self.enabled and self.resource_count_name == self.resource_memory_name:
            raise ValueError("resource_count_name and resource_memory_name must differ")
        return self


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


# Seconds. Shorter, and a certificate could end while the next one waits to be trusted everywhere (10 s each).
Lifetime = Annotated[float, Field(ge=60, le=100 * 365 * 86_400)]


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


class NodeSettings(Section):
    """The node that `tenure node` runs on."""

    name: str = ""
    """Its name in the cluster; the chart fills it from `spec.nodeName`. Empty: the host's name."""


class CardClass(Section):
    """A kind of accelerator known by its device nodes, for vendors that Tenure has no code for."""

    vendor: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
    nodes: str
    """Regular expression for the whole path of a compute node below /dev, such as `acme/npu[0-9]+`."""
    drivers: tuple[str, ...] = ()
    """Kernel drivers that are meant; empty: any."""

    @field_validator("nodes")
    @classmethod
    def _compiles(cls, text: str) -> str:
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from None
        return text


class ProfileSettings(Section):
    """The AcceleratorProfile objects that tell about cards."""

    group: str = "airm.ai-computing.io"
    """API group of the kind."""
    version: str = "v1alpha1"
    """API version of the kind."""
    plural: str = "acceleratorprofiles"
    """The kind, as the API server's paths name it."""
    create: bool = True
    """False: another daemon owns the profiles; Tenure writes into its objects and creates none."""


class OccupancySettings(Section):
    """Who holds the cards of a node: the scan, and what is published of it."""

    enabled: bool = True
    """False, or AIRM_OCCUPANCY=0 in the environment: nothing is scanned, and what was published is taken back."""
    interval_s: PositiveSeconds = 15.0
    """Between two scans."""
    drain_interval_s: PositiveSeconds = 3.0
    """Between scans while a card of this node's lupine server waits to be empty."""
    host_rounds: Annotated[int, Field(ge=1, le=100)] = 1
    """Scans in a row with a host process before a card counts as host-held."""
    clean_rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """Scans in a row without one before it is free again."""
    tool_deadline_s: PositiveSeconds = 5.0
    """Of one run of a vendor's tool."""
    walk_deadline_s: PositiveSeconds = 5.0
    """Of looking into all processes."""
    resync_s: PositiveSeconds = 300.0
    """Everything is written again after this time, in case somebody changed it."""
    monitor_hold_s: PositiveSeconds = 600.0
    """A vendor's monitor that keeps a compute node open for longer holds the card."""
    monitors: tuple[str, ...] = ()
    """Further base names of monitors; `x-*` is a prefix."""
    lupine_executable: str = "lupine_driver_server"
    """Base name of lupine's server; its children are clients of other nodes, never host processes."""
    cards: tuple[CardClass, ...] = ()
    """Further kinds of cards, before the built-in ones."""
    optional_tools: tuple[str, ...] = ()
    """Vendors' tools that may be missing (`furiosa-smi`, `rbln-stat`): other sources then decide alone."""
    tool_folders: tuple[Path, ...] = (
        Path("/usr/bin"),
        Path("/usr/local/bin"),
        Path("/run/rbln/driver/usr/bin"),
        Path("/run/nvidia/driver/usr/bin"),
        Path("/host/usr/bin"),
        Path("/host/driver/usr/bin"),
    )
    """Where vendors' tools are looked for; only files that nobody but root can change are run."""
    proc: Path = Path("/proc")
    """The host's; the process must be in the host's pid namespace."""
    sys: Path = Path("/sys")
    """The host's."""
    dev: Path = Path("/dev")
    """The host's; device nodes are looked at and never opened."""
    assume_host_pid: bool = False
    """For nodes that are containers themselves (kind): take their process ids for the host's."""
    profiles: ProfileSettings = ProfileSettings()

    @property
    def active(self) -> bool:
        """False when the setting or rm-accel's own switch turns occupancy off."""
        return self.enabled and os.environ.get("AIRM_OCCUPANCY", "").strip().lower() not in {
            "0",
            "false",
            "off",
        }


class DeviceKindSettings(Section):
    """One kind of device that a pod with the annotation `tenure.dev/claim-template` gets."""

    mode: Literal["dra", "devicePlugin"] = "dra"
    """devicePlugin: the pod asks for an extended resource instead of a claim; NUMA alignment is not given then."""
    resource_name: str = ""
    """The extended resource of mode devicePlugin."""
    count: Annotated[int, Field(ge=1, le=64)] = 1
    """How many of it in mode devicePlugin; in mode dra the template says it."""

    @model_validator(mode="after")
    def _named(self) -> "DeviceKindSettings":
        if self.mode == "devicePlugin" and not self.resource_name:
            raise ValueError("mode devicePlugin needs resource_name, the extended resource to ask for")
        return self


class NpuSettings(DeviceKindSettings):
    """The accelerators."""

    resource_name: str = "rebellions.ai/npu"
    count: Annotated[int, Field(ge=1, le=64)] = 4


class RdmaSettings(DeviceKindSettings):
    """The NICs beside them."""

    enabled: bool = True
    """False: pods get no NIC; set `devices.claim_template_name` to a template without, such as `npu-only`."""
    resource_name: str = "rdma/hca"
    count: Annotated[int, Field(ge=1, le=64)] = 2


class DevicesSettings(Section):
    """Devices that the webhook injects by name."""

    claim_template_name: str = "npu-rdma"
    """The ResourceClaimTemplate of pods whose annotation `tenure.dev/claim-template` is empty."""
    npu: NpuSettings = NpuSettings()
    rdma: RdmaSettings = RdmaSettings()


class ClaimSettings(Section):
    """Checks of claim templates by the leading server."""

    enabled: bool = True
    """False: templates are checked only when somebody asks (`tenure claims check`)."""
    interval_s: Annotated[float, Field(ge=5)] = 60.0
    """Between two rounds; a round lists slices, claims and pods."""


class LogSettings(Section):
    """Logging."""

    format: Literal["json", "console"] = "json"
    """JSON lines, or text for people."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is written."""


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix="TENURE_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    kube: KubeSettings = KubeSettings()
    http: HttpSettings = HttpSettings()
    webhook: WebhookSettings = WebhookSettings()
    regions: RegionSettings = RegionSettings()
    pool: PoolSettings = PoolSettings()
    lease: LeaseSettings = LeaseSettings()
    certs: CertSettings = CertSettings()
    node: NodeSettings = NodeSettings()
    occupancy: OccupancySettings = OccupancySettings()
    devices: DevicesSettings = DevicesSettings()
    claims: ClaimSettings = ClaimSettings()
    log: LogSettings = LogSettings()

    @model_validator(mode="after")
    def _scheduler_can_call(self) -> "Settings":
        if self.http.extender_beyond_loopback and self.certs.mode == "self" and not self.certs.client_secret:
            raise ValueError(
                "http.extender_host is not a loopback address: set certs.client_secret, the Secret that gets the"
                " scheduler's client certificate"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is the library's
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment over file over defaults; no dotenv file, no secrets folder."""
        return init_settings, env_settings, YamlConfigSettingsSource(settings_cls)


def load(config: Path | None = None) -> Settings:
    """Read the tree. Raises SettingsError with one line per field that is wrong."""
    if config is not None:
        _check_file(config)

    class FromFile(Settings):
        model_config = SettingsConfigDict(yaml_file=config)

    try:
        return FromFile()
    except ValidationError as error:
        raise SettingsError("\n".join(_lines(error))) from None


def _check_file(config: Path) -> None:
    try:
        content = yaml.safe_load(config.read_bytes())
    except OSError as error:
        raise SettingsError(f"--config: {config} cannot be read: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise SettingsError(f"--config: {config} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict | None):
        raise SettingsError(
            f"--config: {config} must hold sections such as `http:`, not a single value or a list"
        )


def _lines(error: ValidationError) -> Iterator[str]:
    for item in error.errors(include_url=False):
        field = ".".join(str(part) for part in item["loc"])
        variable = "TENURE_" + "__".join(str(part).upper() for part in item["loc"])
        message = item["msg"].removeprefix("Value error, ")
        yield f"{field} ({variable}): {message}" if field else message
