"""Where a lab keeps its things: everything that one lab knows lies in one folder."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_STATE = REPOSITORY / ".lab" / "run"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What a lab was started with.

    `host` is the address that its API server listens on, `binaries` the folder of its programs: a later
    build must not change what runs.
    """

    host: str
    binaries: str
    ports: dict[str, int]
    node_missing: str | None
    feature_gates: dict[str, bool] = {}
    api_server_flags: list[str] = []


@dataclass(frozen=True, slots=True)
class Layout:
    """The folder's parts."""

    state: Path

    @property
    def settings(self) -> Path:
        return self.state / "lab.json"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def records(self) -> Path:
        return self.state / "processes"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def audit_log(self) -> Path:
        return self.logs / "audit.log"

    @property
    def etcd(self) -> Path:
        return self.state / "etcd"

    @property
    def kubeconfigs(self) -> Path:
        return self.state / "kubeconfigs"

    @property
    def configs(self) -> Path:
        return self.state / "configs"

    @property
    def commands(self) -> Path:
        """Holds `kubectl`, for a person's PATH."""
        return self.state / "bin"

    @property
    def cache(self) -> Path:
        """kubectl's, whose home the state folder is."""
        return self.state / ".kube"

    @property
    def disposable(self) -> tuple[Path, ...]:
        """What goes when the lab goes. The logs stay: they are read when something went wrong."""
        return (self.records, self.pki, self.etcd, self.kubeconfigs, self.configs, self.commands, self.cache)

    def read_settings(self) -> Settings | None:
        try:
            return msgspec.json.decode(self.settings.read_bytes(), type=Settings)
        except FileNotFoundError:
            return None
