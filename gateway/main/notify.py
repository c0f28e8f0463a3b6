"""What systemd is told of this process (sd_notify(3)): ready, alive, stopping. Nothing without a service manager.

A message is one datagram of `NAME=value` lines to the socket that NOTIFY_SOCKET names:

    READY=1                   connections are taken and answered
    WATCHDOG=1                the event loop turns; sent at least twice in each interval that the manager allows
    EXTEND_TIMEOUT_USEC=…     before READY: it recovers, however long that takes, as long as the event loop turns
    STOPPING=1                a signal has come
    STATUS=…                  a line for `systemctl status`

What cannot be sent is dropped: the manager may have gone, and a server does not depend on it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

BEAT_S = 10.0
"""How often the manager is notified where it sets no interval itself."""

EXTENSION_BEATS = 6
"""How many beats a start may last longer, said anew with each."""


class Notifier:
    """Tells the service manager. Made from the environment that it gave to the process."""

    def __init__(self, environment: Mapping[str, str], *, pid: int | None = None) -> None:
        self._path = environment.get("NOTIFY_SOCKET", "")
        watched = int(environment.get("WATCHDOG_PID", "0") or 0) in (0, os.getpid() if pid is None else pid)
        interval_us = int(environment.get("WATCHDOG_USEC", "0") or 0) if watched else 0
        self.beat_s = min(BEAT_S, interval_us / 2_000_000) if interval_us else BEAT_S
        self._is_ready = False

    def ready(self, status: str) -> None:
        """Requests are answered now."""
        self._is_ready = True
        self._send("READY=1", f"STATUS={status}")

    def stopping(self) -> None:
        """A signal has come; what is under way is finished."""
        self._send("STOPPING=1", "STATUS=stopping")

    def beat(self) -> None:
        """The event loop turns."""
        if self._is_ready:
            self._send("WATCHDOG=1")
        else:
            self._send(f"EXTEND_TIMEOUT_USEC={int(EXTENSION_BEATS * self.beat_s * 1_000_000)}", "STATUS=recovering")

    def _send(self, *lines: str) -> None:
        if not self._path:
            return
        address = "\0" + self._path[1:] if self._path.startswith("@") else self._path
        kind = socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with suppress(OSError), socket.socket(socket.AF_UNIX, kind) as sender:
            sender.sendto("\n".join(lines).encode(), address)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Beat until the end of the block, if there is a manager."""
        if not self._path:
            yield
            return
        loop = asyncio.get_running_loop()
        handle: asyncio.TimerHandle

        def beat_again() -> None:
            nonlocal handle
            self.beat()
            handle = loop.call_later(self.beat_s, beat_again)

        beat_again()
        try:
            yield
        finally:
            handle.cancel()
