"""The whole tree, and how it is read."""

from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    YamlConfigSettingsSource,
)

from service.settings.devices import ClaimSettings, DevicesSettings, PoolSettings
from service.settings.node import NodeSettings, OccupancySettings, RegionSettings
from service.settings.server import (
    CertSettings,
    HttpSettings,
    KubeSettings,
    LeaseSettings,
    LogSettings,
    WebhookSettings,
)


class SettingsError(Exception):
    """The configuration cannot be used; each line of the text names one field and what is wrong with it."""


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
