"""Whether this process can see the host's processes at all.

A pod's own first process, its cgroup or its name say nothing: with private namespaces an ordinary pod looks like a
host from within. Two things cannot be imitated from inside a container: the inode of the kernel's first pid namespace
(include/linux/proc_ns.h, PROC_PID_INIT_INO) and a visible kthreadd, which lives nowhere else.
"""

from dataclasses import dataclass

_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
_NO_HOST_PID = "host processes are not visible (run with hostPID): occupancy not reported"
_HIDDEN = "/proc hides other users' processes (mount option hidepid): occupancy not reported"
_OPTIONS, _OWN_OPTIONS = -1, 5


@dataclass(frozen=True, slots=True)
class Signals:
    """What was read: the link /proc/self/ns/pid, the name of process 2, and /proc/self/mountinfo."""

    namespace: str
    second_process: str
    mountinfo: str = ""
    may_trace: bool = True
    """Whether CAP_SYS_PTRACE is in force, which lifts hidepid."""


def blindness(signals: Signals, *, assume_host_pid: bool = False) -> str | None:
    """Why host processes cannot be seen, as a sentence for people; None when they can.

    `assume_host_pid` is for nodes that are containers themselves (kind): their processes are all there is to see.
    """
    if assume_host_pid:
        return None
    if signals.namespace != _INITIAL_PID_NAMESPACE:
        return _NO_HOST_PID
    if (hides_processes(signals.mountinfo) and not signals.may_trace) or (
        signals.second_process.strip() != "kthreadd"
    ):
        return _HIDDEN
    return None


def hides_processes(mountinfo: str) -> bool:
    """True when the proc file system at /proc is mounted with hidepid in force (proc(5), mount options)."""
    for line in mountinfo.split("\n"):
        fields = line.split()
        if len(fields) > _OWN_OPTIONS and fields[4] == "/proc" and "proc" in fields[6:]:
            options = ",".join((fields[_OWN_OPTIONS], fields[_OPTIONS])).split(",")
            values = [o.partition("=")[2] for o in options if o.startswith("hidepid=")]
            if any(value not in {"0", "off"} for value in values):
                return True
    return False


def may_trace(status: str) -> bool:
    """Whether /proc/self/status lists CAP_SYS_PTRACE (bit 19, linux/capability.h) among the effective ones."""
    for line in status.split("\n"):
        if line.startswith("CapEff:"):
            try:
                return bool(int(line.split()[1], 16) >> 19 & 1)
            except (IndexError, ValueError):
                return False
    return False
