"""Debian's Prometheus beside a lab's cluster: it scrapes the API server and what it is told, and answers queries."""

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml

from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.lab.ports import free_ports
from tests.lab.process import Health, Program

NAME = "prometheus"
USER = "lab:prometheus"
_QUERY_SECONDS = 10.0
_POLL_SECONDS = 0.25


class Prometheus:
    """One server. `program` is its path; its data lies in `folder`."""

    def __init__(self, lab: Lab, program: str, folder: Path) -> None:
        self._lab = lab
        self._program = program
        self._folder = folder
        (self._port,) = free_ports(1)

    def start(self, targets: Mapping[str, str], rules: Mapping[str, Any] | None = None) -> None:
        """Scrape these (`job` to `host:port`) and the API server each second, and evaluate `rules` as often."""
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "rules.yaml").write_text(yaml.safe_dump(dict(rules or {"groups": []})))
        config = self._folder / "prometheus.yaml"
        config.write_text(yaml.safe_dump(self._config(targets)))
        argv = [
            self._program,
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
            "--log.level=warn",
        ]
        health = Health(port=self._port, path="/-/ready", tls=False)
        self._lab.components.run(Program(NAME, argv, {}, health=health))

    def _config(self, targets: Mapping[str, str]) -> dict[str, Any]:
        identity = self._lab.identity(USER, groups=("system:masters",))
        jobs: list[dict[str, Any]] = [
            {"job_name": job, "static_configs": [{"targets": [target]}]} for job, target in targets.items()
        ]
        jobs.append(
            {
                "job_name": "kube-apiserver",
                "scheme": "https",
                "tls_config": identity,
                "static_configs": [{"targets": [self._lab.server.removeprefix("https://")]}],
            }
        )
        return {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": jobs,
        }

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression has now, each with its `metric` and its `value`. LabError if it is not one."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return found

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        alerts = self._ask("alerts")["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def until(self, true: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until something is so; LabError after that time."""
        deadline = monotonic() + seconds
        while not true():
            if monotonic() > deadline:
                raise LabError(f"{what}: not within {seconds:.0f} s")
            sleep(_POLL_SECONDS)

    def _ask(self, kind: str, **parameters: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{kind}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=_QUERY_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise LabError(f"{parameters}: {error.read().decode()[:500]}") from error
