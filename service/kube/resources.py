"""Where the API server keeps each kind that Tenure touches."""

from dataclasses import dataclass
from urllib.parse import quote

from service import names


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of the API: `group` is empty for core/v1."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool

    @property
    def api_version(self) -> str:
        """`group/version`, or `version` for the core group: an object's `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str | None = None
    ) -> str:
        """The URL path of the collection (without `name`), an object or its subresource, percent-encoded.

        Raises ValueError for a path that would mean something else than what was asked for: an object without
        its namespace, a namespace for a cluster-scoped kind, an empty or dotted segment.
        """
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.plural} is cluster-scoped: give no namespace")
        if namespace is None and self.namespaced and name is not None:
            raise ValueError(f"{self.plural} is namespaced: give the namespace of {name}")
        if subresource is not None and name is None:
            raise ValueError(f"{self.plural}/{subresource} needs a name")
        root = ["apis", self.group] if self.group else ["api"]
        scope = ["namespaces", namespace] if namespace is not None else []
        target = [part for part in (self.plural, name, subresource) if part is not None]
        return "/" + "/".join(_segment(part) for part in (*root, self.version, *scope, *target))


def _segment(text: str) -> str:
    if text in {"", ".", ".."}:
        raise ValueError(f"{text!r} is not a name")
    return quote(text, safe="")


PODS = Resource("", "v1", "pods", "Pod", namespaced=True)
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
SECRETS = Resource("", "v1", "secrets", "Secret", namespaced=True)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", namespaced=True)
REMOTE_SERVERS = Resource(names.GROUP, names.VERSION, "remoteservers", "RemoteServer", namespaced=False)
MUTATING_WEBHOOKS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
ADMISSION_POLICIES = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    namespaced=False,
)
ADMISSION_POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    namespaced=False,
)
ACCELERATOR_PROFILES = Resource(
    "airm.ai-computing.io", "v1alpha1", "acceleratorprofiles", "AcceleratorProfile", namespaced=False
)
RESOURCE_SLICES = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice", namespaced=False)
DEVICE_CLASSES = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass", namespaced=False)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", namespaced=True
)
DAEMON_SETS = Resource("apps", "v1", "daemonsets", "DaemonSet", namespaced=True)
