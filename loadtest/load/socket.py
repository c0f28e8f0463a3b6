"""One WebSocket of a user, frame by frame: `/ws/v1` (docs/websocket.md). Blocking, which gevent turns into waiting."""

from __future__ import annotations

import itertools
from typing import Any

import orjson
import websocket

TIMEOUT_S = 2.0
CLOSE_TIMEOUT_S = 1
SUB = "s"
Frame = dict[str, Any]


class Refused(Exception):
    """The server said no, or ended the subscription or the socket."""


class Socket:
    """A connection with one subscription."""

    def __init__(self, host: str) -> None:
        """Connect. Raises OSError or WebSocketException."""
        self._ids = itertools.count(1)
        self._socket = websocket.create_connection("ws" + host.removeprefix("http") + "/ws/v1", timeout=TIMEOUT_S)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """With a close frame: members leave and leases go back at once."""
        self._socket.close(timeout=CLOSE_TIMEOUT_S)

    def subscribe(self, **fields: object) -> Frame:
        """Subscribe and wait for the answer. Raises Refused."""
        number = self.send({"op": "subscribe", "sub": SUB, **fields})
        while True:
            frame = self.receive()
            if frame is not None and frame.get("id") == number:
                if not frame["ok"]:
                    raise Refused(str(frame.get("message")))
                return frame

    def send(self, command: dict[str, object]) -> int:
        """Send a command; the id by which its answer is known."""
        number = next(self._ids)
        self._socket.send(orjson.dumps({"id": number, **command}).decode())
        return number

    def receive(self) -> Frame | None:
        """The next frame; None when none comes for TIMEOUT_S. Raises Refused, OSError, WebSocketException."""
        try:
            received = self._socket.recv()
        except websocket.WebSocketTimeoutException:
            return None
        if not received:
            raise Refused("the server closed the socket")
        frame: Frame = orjson.loads(received)
        if frame.get("op") in ("error", "goaway"):
            raise Refused(f"the server ended the subscription: {frame}")
        return frame
