"""The chart as Helm renders it, for tests that ask no cluster."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.chart.values import CHART
from tests.lab.build import binaries

Json = dict[str, Any]
NAMESPACE = "tenure-system"
CI = sorted((CHART / "ci").glob("*.yaml"))


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    program = str(binaries(["helm"]) / "helm")
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=60, check=False)


def template(
    *words: str, chart: Path = CHART, namespace: str = NAMESPACE
) -> subprocess.CompletedProcess[str]:
    return helm("template", "tenure", str(chart), f"--namespace={namespace}", *words)


def render(*words: str, chart: Path = CHART) -> list[Json]:
    """Every object. Words such as `--set=a=b`."""
    done = template(*words, chart=chart)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def one(objects: Sequence[Json], kind: str, name: str) -> Json:
    (found,) = [o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name]
    return found


def named(objects: Sequence[Json], kind: str) -> list[str]:
    return [o["metadata"]["name"] for o in objects if o["kind"] == kind]


def settings(objects: Sequence[Json]) -> Json:
    """The program's configuration file."""
    found: Json = yaml.safe_load(one(objects, "ConfigMap", "tenure")["data"]["tenure.yaml"])
    return found


def scheduler(objects: Sequence[Json]) -> Json:
    """The kube-scheduler's configuration file."""
    found: Json = yaml.safe_load(one(objects, "ConfigMap", "tenure-scheduler")["data"]["config.yaml"])
    return found


def pod_templates(objects: Sequence[Json]) -> list[Json]:
    """The pod of every workload, and pods themselves."""
    workloads = [o["spec"]["template"] for o in objects if o["kind"] in {"Deployment", "DaemonSet", "Job"}]
    return [*workloads, *(o for o in objects if o["kind"] == "Pod")]
