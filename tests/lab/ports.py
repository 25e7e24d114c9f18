"""Ports: free ones to start on, and who listens on one."""

import random
import socket
from contextlib import ExitStack
from pathlib import Path

from tests.lab.errors import LabError

# Below the range of outgoing connections (32768 and up) and of NodePorts (30000 and up), so that neither
# takes a port between our look and the server's start.
_FIRST, _LAST = 20000, 29999
_TRIES = 1000
_LISTEN = "0A"  # The state's number in /proc/net/tcp.


def free_ports(count: int, *, host: str = "127.0.0.1") -> list[int]:
    """Different ports that nobody listens on now."""
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(_TRIES):
            if len(ports) == count:
                return ports
            port = random.randint(_FIRST, _LAST)
            sock = held.enter_context(socket.socket())
            try:
                sock.bind((host, port))
            except OSError:
                continue
            ports.append(port)
    raise LabError(f"no {count} free ports between {_FIRST} and {_LAST} on {host}: stop what uses them")


def listens(pid: int, port: int) -> bool:
    """Whether this very process listens on the port: an answer alone may come from somebody else's server."""
    return bool(_listening_inodes(port) & _socket_inodes(pid))


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _socket_inodes(pid: int) -> set[str]:
    inodes = set()
    try:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            target = str(fd.readlink())
            if target.startswith("socket:["):
                inodes.add(target[len("socket:[") : -1])
    except (FileNotFoundError, ProcessLookupError):
        pass  # The process or one of its files went meanwhile: the next look tells.
    return inodes
