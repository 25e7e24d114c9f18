"""Whose server it is, not only that one answers."""

import os
import socket

from tests.lab.ports import free_ports, listens


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_taken_port_is_not_free() -> None:
    (port,) = free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert port not in free_ports(500)


def test_the_listener_of_a_port_is_known() -> None:
    (port,) = free_ports(1)
    assert not listens(os.getpid(), port)
    with socket.create_server(("127.0.0.1", port)):
        assert listens(os.getpid(), port)
        assert not listens(os.getppid(), port)


def test_a_client_of_a_port_does_not_listen_on_it() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        assert not listens(os.getpid(), client.getsockname()[1])


def test_a_process_that_is_gone_listens_on_nothing() -> None:
    assert not listens(2**22 + 1, 22)
