"""pytest fixtures: one cluster for the session, a clean namespace for each test, no blocked event loop.

Set TENURE_LAB to the state folder of a running lab to use that one and leave it running, and
TENURE_REQUIRE_NODE=1 to let tests of the real node fail, not skip, where there can be no node; the same holds for
tests that need root or a Debian package where that is missing.
"""

import inspect
import os
import re
import secrets
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
from _pytest.capture import CaptureManager
from blockbuster import BlockBuster, blockbuster_ctx

from tests.lab.api import Call
from tests.lab.build import binaries
from tests.lab.errors import LabError
from tests.lab.lab import Lab
from tests.lab.layout import REPOSITORY
from tests.lab.process import Identity, identify, is_alive
from tests.lab.progress import progress
from tests.lab.simulated import SimulatedNode

_PRODUCT = ["service", "webhook", "controllers", "certs"]
_SESSIONS = REPOSITORY / ".lab"
_SESSION = re.compile(r"pytest-(\d+)-(\d+)-([0-9a-f-]{36})")
_PODS_GONE_SECONDS = 10.0  # A pod that resists longer is left to the namespace's deletion.
_NAME_LENGTH = 40  # Of the 63 that a namespace may have; the rest is for what is derived from it.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "own_node: takes the machine's one node for a lab of the test's own")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for the lab needs the cluster, so that `-m "not cluster"` leaves it out.

    Tests that need the machine's node for themselves come first, before the session's lab has it.
    """
    items.sort(key=lambda item: item.get_closest_marker("own_node") is None)
    for item in items:
        node = item.get_closest_marker("node") or item.get_closest_marker("own_node")
        if node or "lab" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build the programs before the first test, whose time limit does not allow for a build."""
    needed = any(item.get_closest_marker("cluster") for item in session.items)
    if needed and not session.config.option.collectonly:
        with _shown(session.config):
            binaries()


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A running cluster; with a real node when a selected test is marked `node` and this machine can."""
    if running := os.environ.get("TENURE_LAB"):
        yield Lab(running)
        return
    _remove_dead_sessions()
    lab = Lab(_SESSIONS / _session_name(), progress=progress)
    node = any(item.get_closest_marker("node") for item in request.session.items)
    try:
        with _shown(request.config):
            lab.up(node=node)
        yield lab
    finally:
        lab.down()


@pytest.fixture(autouse=True)
def _node_tier(request: pytest.FixtureRequest) -> None:
    """Skip a test of the real node where there is none, with the reason; fail it where one is required."""
    if request.node.get_closest_marker("node") is None:
        return
    require_node(request.getfixturevalue("lab").node_missing)


def require_node(missing: str | None) -> None:
    """Leave the test when there is no real node; `missing` is the reason."""
    if missing is not None:
        _leave(f"no real node: {missing}")


def require_program(name: str) -> str:
    """Path of a program of a Debian package that `make viewers` installs; without it, as `require_node`."""
    path = shutil.which(name)
    if path is None:
        _leave(f"{name} is not installed, which `make viewers` does")
    return str(path)


def require_root() -> None:
    """Leave the test when it is not root's, who alone may mount and make namespaces; as `require_node`."""
    if os.geteuid() != 0:
        _leave("needs root: mounts and namespaces")


def _leave(reason: str) -> None:
    refuse: Callable[[str], None] = pytest.fail if os.environ.get("TENURE_REQUIRE_NODE") else pytest.skip
    refuse(reason)


@pytest.fixture
def simulate(lab: Lab) -> Iterator[Callable[[Iterable[SimulatedNode]], None]]:
    """Adds simulated nodes that are gone after the test."""
    names: list[str] = []

    def add(nodes: Iterable[SimulatedNode]) -> None:
        made = list(nodes)
        names.extend(node.name for node in made)
        lab.simulate_nodes(made)

    yield add
    lab.remove_nodes(names)


@pytest.fixture
def namespace(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a namespace of the test's own; its pods are gone after the test if they let themselves."""
    readable = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower())[:_NAME_LENGTH].strip("-")
    name = f"{readable}-{secrets.token_hex(3)}"
    lab.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # No pod can be made before; kube-controller-manager may be a minute late after a test that killed the API server.
    lab.wait_for(f"/api/v1/namespaces/{name}/serviceaccounts/default", seconds=120)
    yield name
    pods = f"/api/v1/namespaces/{name}/pods"
    lab.api.ok(Call("DELETE", pods, {"gracePeriodSeconds": 1}))
    lab.api.ok(Call("DELETE", f"/api/v1/namespaces/{name}", {}))
    try:
        lab.wait_for(pods, accept=lambda found: not found["items"], seconds=_PODS_GONE_SECONDS)
    except LabError:
        return


@pytest.fixture(autouse=True)
def blockbuster(request: pytest.FixtureRequest) -> Iterator[BlockBuster | None]:
    """In an async test, a blocking call of the product raises BlockingError; calls of the test itself may block."""
    if not inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        yield None
        return
    with blockbuster_ctx(_PRODUCT) as detector:
        yield detector


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test of the cluster says where the cluster's logs are."""
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and isinstance(lab, Lab):
        report.sections.append(("lab", f"logs of the cluster's components: {lab.logs}"))
    return report


def _shown(config: pytest.Config) -> AbstractContextManager[None]:
    """Lets a person see progress that pytest would capture."""
    capture = config.pluginmanager.getplugin("capturemanager")
    return capture.global_and_fixture_disabled() if isinstance(capture, CaptureManager) else nullcontext()


def _session_name() -> str:
    identity = identify(os.getpid())
    assert identity is not None
    return f"pytest-{identity.pid}-{identity.start_ticks}-{identity.boot_id}"


def _remove_dead_sessions() -> None:
    """Clean up after sessions that were killed; a finished session's logs are kept until now."""
    for folder in _SESSIONS.glob("pytest-*"):
        match = _SESSION.fullmatch(folder.name)
        if match is None or is_alive(_identity(*match.groups())):
            continue
        for settings in folder.rglob("lab.json"):  # Tests of the lab keep labs within the session's.
            Lab(settings.parent).down()
        shutil.rmtree(folder, ignore_errors=True)  # Another session may do the same now.


def _identity(pid: str, start_ticks: str, boot: str) -> Identity:
    return Identity(pid=int(pid), start_ticks=int(start_ticks), boot_id=boot)
