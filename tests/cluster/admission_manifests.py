"""The chart's admission objects without Helm: its files are plain YAML with a few values that are JSON."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from service.settings import Settings

FILES = Path(__file__).parents[2] / "charts" / "tenure" / "files"


def guard(accounts: Sequence[str]) -> list[dict[str, Any]]:
    """The guard policies and their bindings."""
    return _render("guard.yaml", {"ACCOUNTS": list(accounts)})


def webhook(
    client_config: Mapping[str, Any], settings: Settings | None = None, **values: Any
) -> dict[str, Any]:
    """The MutatingWebhookConfiguration. Values: NAME, FAILURE_POLICY, TIMEOUT_SECONDS, EXCLUDED_NAMESPACES."""
    tree = settings or Settings()
    pool = [tree.pool.resource_count_name, tree.pool.resource_memory_name]
    defaults = {
        "NAME": tree.webhook.configuration_name,
        "CLIENT_CONFIG": dict(client_config),
        "RESOURCES": [name for name in (*pool, *tree.regions.resources) if name],
        "FAILURE_POLICY": "Ignore",
        "TIMEOUT_SECONDS": 5,
        "EXCLUDED_NAMESPACES": ["kube-system", "tenure-system"],
    }
    (found,) = _render("webhook.yaml", defaults | values)
    return found


def _render(file: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    text = (FILES / file).read_text()
    for name, value in values.items():
        text = text.replace(f"@{name}@", json.dumps(value, separators=(",", ":")))
    return list(yaml.safe_load_all(text))
