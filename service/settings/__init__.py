"""One settings tree for every command.

Sources, strongest first: `TENURE_SECTION__FIELD` in the environment, then the YAML file named by `--config`, then
the defaults of the sections. All errors are reported at once, by the field's name.
"""

from service.settings.devices import DevicesSettings, PoolSettings
from service.settings.node import CardClass, NodeSettings, OccupancySettings, ProfileSettings, RegionSettings
from service.settings.server import CertSettings, HttpSettings, KubeSettings, LeaseSettings, WebhookSettings
from service.settings.tree import Settings, SettingsError, load

__all__ = [
    "CardClass",
    "CertSettings",
    "DevicesSettings",
    "HttpSettings",
    "KubeSettings",
    "LeaseSettings",
    "NodeSettings",
    "OccupancySettings",
    "PoolSettings",
    "ProfileSettings",
    "RegionSettings",
    "Settings",
    "SettingsError",
    "WebhookSettings",
    "load",
]
