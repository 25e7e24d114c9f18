"""Who may say that nobody is there: only one who sees the host's processes."""

import pytest

from controllers.occupancy.visibility import Signals, blindness, hides_processes, may_trace

HOST = Signals("pid:[4026531836]", "kthreadd\n")
MOUNT = "22 27 0:21 / /proc rw,relatime - proc proc rw"


def test_the_first_pid_namespace_with_kthreadd_sees_the_host() -> None:
    assert blindness(HOST) is None


def test_an_ordinary_pod_is_blind_although_its_first_process_looks_like_a_host() -> None:
    """Finding 1: the cgroup of process 1 is `0::/` there, and says nothing."""
    assert blindness(Signals("pid:[4026532501]", "")) == (
        "host processes are not visible (run with hostPID): occupancy not reported"
    )


def test_a_second_process_of_that_name_proves_nothing_in_another_namespace() -> None:
    assert blindness(Signals("pid:[4026532501]", "kthreadd\n")) is not None


@pytest.mark.parametrize("second", ["", "bash\n"])
def test_without_kthreadd_something_hides_processes(second: str) -> None:
    assert "hidepid" in (blindness(Signals("pid:[4026531836]", second)) or "")


@pytest.mark.parametrize("option", ["hidepid=2", "hidepid=invisible", "hidepid=ptraceable", "hidepid=1"])
def test_hidepid_blinds_who_may_not_trace(option: str) -> None:
    hidden = f"{MOUNT},{option}"
    assert blindness(Signals(*_host(), mountinfo=hidden, may_trace=False)) is not None
    assert blindness(Signals(*_host(), mountinfo=hidden, may_trace=True)) is None


def _host() -> tuple[str, str]:
    return HOST.namespace, HOST.second_process


@pytest.mark.parametrize("text", [MOUNT, f"{MOUNT},hidepid=0", f"{MOUNT},hidepid=off", "", "a b c"])
def test_a_proc_that_hides_nothing(text: str) -> None:
    assert not hides_processes(text)


def test_a_node_that_is_a_container_can_be_trusted_by_setting() -> None:
    assert blindness(Signals("pid:[4026532501]", "sh"), assume_host_pid=True) is None


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("CapEff:\t000001fffeffffff\n", True),
        ("CapEff:\t00000000a80425fb\n", False),
        ("CapEff:\tx\n", False),
        ("", False),
    ],
)
def test_the_right_to_look_into_processes_is_one_bit(text: str, *, allowed: bool) -> None:
    assert may_trace(text) is allowed
