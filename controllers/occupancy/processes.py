"""A process as far as occupancy needs it, from the texts of /proc (proc(5)).

Names are what the kernel says about the executable: /proc/PID/comm is cut to 15 bytes and a program may set it, and
arguments are the program's own words. Only the base name is ever kept: no arguments, users or environment.
"""

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from controllers.occupancy.cgroups import Placement

# linux/sched.h: PF_KTHREAD. Kernel threads have no open files.
_KERNEL_THREAD = 0x0020_0000
# proc_pid_stat(5), counted from 0 behind the name: state, ppid, pgrp, ..., flags, ..., num_threads, ..., starttime.
_PARENT, _GROUP, _FLAGS, _THREADS, _START = 1, 2, 6, 17, 19
# linux/threads.h: PID_MAX_LIMIT on 64-bit machines.
_MOST_PID = 4_194_304
_NAME_LIMIT = 64  # characters of a command that are published; longer ones are somebody's joke
_INTERPRETER = re.compile(r"^python[0-9.]*$")


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of /proc/PID/stat that are used. `start` in clock ticks since boot."""

    comm: str
    state: str
    parent: int
    group: int
    threads: int
    start: int
    kernel_thread: bool

    @property
    def is_dead(self) -> bool:
        """It ended and waits for its parent to notice: nothing is open any more."""
        return self.state in {"Z", "X"} and self.threads <= 1

    @property
    def leader_is_dead(self) -> bool:
        """A zombie main thread shows no open files although its other threads may hold some."""
        return self.state == "Z" and self.threads > 1


def parse_stat(text: str) -> Stat | None:
    """The fields of a stat line; None when it is not one. The name may hold spaces and parentheses."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        return Stat(
            comm=head.partition("(")[2],
            state=fields[0],
            parent=int(fields[_PARENT]),
            group=int(fields[_GROUP]),
            threads=int(fields[_THREADS]),
            start=int(fields[_START]),
            kernel_thread=bool(int(fields[_FLAGS]) & _KERNEL_THREAD),
        )
    except (IndexError, ValueError):
        return None


def parse_pid(value: object) -> int | None:
    """A process id from a tool's JSON or text; None when it is none. Tools write it as a number or in quotes."""
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdecimal():
        value = int(value.strip()[:20])
    return value if type(value) is int and 0 < value <= _MOST_PID else None


def base_name(text: str) -> str:
    """The last path component, printable and short: what may be published about a process."""
    name = posixpath.basename(text.strip().removesuffix(" (deleted)"))
    return "".join(c for c in name if c.isprintable())[:_NAME_LIMIT]


def runs_script(command: str) -> bool:
    """True for an interpreter, whose own name says nothing about what it runs."""
    return bool(_INTERPRETER.match(command))


@dataclass(frozen=True, slots=True)
class Process:
    """A process that holds a card or is related to one that does.

    `script` is the base name of the script of an interpreter run by root. `trusted` is True when its executable
    belongs to root: names of other files prove nothing.
    """

    pid: int
    start: int
    parent: int
    group: int
    command: str
    placement: Placement
    script: str = ""
    trusted: bool = False

    def named(self, names: Collection[str]) -> bool:
        """True when its name is among `names` and may be believed; `x-*` matches any name that begins with `x-`."""
        return self.trusted and any(
            own == name or (name.endswith("*") and own.startswith(name[:-1]))
            for own in (self.command, self.script)
            if own
            for name in names
        )


class Missing(Enum):
    """What there is instead of a description of a process."""

    GONE = "gone"
    UNREADABLE = "unreadable"


Described = Process | Missing
