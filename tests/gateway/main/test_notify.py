"""What the service manager hears, and when."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.main.notify import BEAT_S, EXTENSION_BEATS, Notifier
from tests.e2e.server import Server


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The manager's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.setblocking(False)
        yield receiver


def heard(manager: socket.socket) -> list[str]:
    return manager.recv(65_536).decode().splitlines()


def test_a_start_is_extended_then_ready_then_watched_then_stopping(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "4000000"})
    assert notifier.beat_s == 2
    notifier.beat()
    assert heard(manager) == [f"EXTEND_TIMEOUT_USEC={EXTENSION_BEATS * 2_000_000}", "STATUS=recovering"]
    notifier.ready("http://here")
    assert heard(manager) == ["READY=1", "STATUS=http://here"]
    notifier.beat()
    assert heard(manager) == ["WATCHDOG=1"]
    notifier.stopping()
    assert heard(manager) == ["STOPPING=1", "STATUS=stopping"]


def test_the_interval_is_the_managers_only_when_it_is_meant_for_this_process() -> None:
    environment = {"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "77"}
    assert Notifier(environment, pid=77).beat_s == 0.5
    assert Notifier(environment, pid=78).beat_s == BEAT_S
    assert Notifier({}).beat_s == BEAT_S


def test_an_abstract_socket_is_reached() -> None:
    name = f"mq-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name)
        receiver.setblocking(False)
        Notifier({"NOTIFY_SOCKET": "@" + name}).ready("up")
        assert heard(receiver) == ["READY=1", "STATUS=up"]


def test_a_manager_that_has_gone_or_does_not_read_changes_nothing(manager: socket.socket, tmp_path: Path) -> None:
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).beat()
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname()})
    for _ in range(10_000):  # more than the socket holds
        notifier.beat()
    assert heard(manager)


async def test_it_beats_while_the_loop_turns(manager: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "2000"})
    loop = asyncio.get_running_loop()
    with notifier.beating():
        for _ in range(3):
            assert (await loop.sock_recv(manager, 1000)).startswith(b"EXTEND_TIMEOUT_USEC=")
        notifier.ready("up")
        while b"READY=1" not in await loop.sock_recv(manager, 1000):
            pass
        assert await loop.sock_recv(manager, 1000) == b"WATCHDOG=1"


async def test_a_server_tells_when_it_is_ready_alive_and_stopping(manager: socket.socket, tmp_path: Path) -> None:
    server = Server(tmp_path / "data", {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "100000"})
    loop = asyncio.get_running_loop()

    async def hear(wanted: bytes) -> bytes:
        while wanted not in (message := await loop.sock_recv(manager, 1000)):
            pass
        return message

    try:
        await server.start()
        async with asyncio.timeout(60):
            assert server.url.encode() in await hear(b"READY=1")
            await hear(b"WATCHDOG=1")
            server.signal(signal.SIGTERM)
            await hear(b"STOPPING=1")
        assert await server.ended() == 0
    finally:
        await server.end()
