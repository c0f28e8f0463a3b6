"""What is asked over HTTP: topics, schedules, groups. One call a route of the server's native API (docs/http.md)."""

from __future__ import annotations

import asyncio
import random
from typing import Any
from urllib.parse import quote

import msgspec

from mq.clock import Clock
from mq.connection import Connection
from mq.errors import ConnectionLost, MqError, NotReached, Refused
from mq.protocol import wait_s
from mq.transport import Transport
from mq.values import encode_json

RETRY_S = 30.0
"""How long a request is tried again that the server cannot answer for now: a node restarts, a partition moves."""

PAUSE_S_MAX = 3.0
UNAVAILABLE = 503


class Http:
    """Requests with the client's token. What the server did not do because it could not for now, and what was not
    answered and may be asked twice, is asked again for `retry_s`."""

    def __init__(self, transport: Transport, connection: Connection, clock: Clock, *, retry_s: float = RETRY_S) -> None:
        self._transport = transport
        self._connection = connection
        self._clock = clock
        self._retry_s = retry_s

    async def call(self, method: str, path: str, query: dict[str, object] | None = None, body: object = None) -> Any:
        """Any route; its answer's JSON, None without one. Raises Refused for a status from 400 on, ConnectionLost
        without an answer."""
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        encoded = None if body is None else encode_json(body)
        until_s = self._clock.monotonic_s() + self._retry_s
        failures = 0
        while True:
            after_s = 0.0
            token = await self._connection.token()
            try:
                status, answer, retry_after_s = await self._transport.request(method, path, given, encoded, token)
                parsed = _parse(answer)
                if status < 400:
                    return parsed
                refusal = _refusal(status, parsed)
                if status != UNAVAILABLE or not refusal.retriable:
                    raise refusal
                error: MqError = refusal
                after_s = retry_after_s or 0.0
            except ConnectionLost as lost:
                if method != "GET" and not isinstance(lost, NotReached):
                    raise
                error = lost
            failures += 1
            pause_s = max(after_s, min(wait_s(failures, random.random()), PAUSE_S_MAX))
            if self._clock.monotonic_s() + pause_s > until_s or self._connection.conversation.state == "closed":
                raise error
            await self._pause(pause_s)

    async def _pause(self, pause_s: float) -> None:
        over = asyncio.Event()
        timer = self._clock.later(pause_s, over.set)
        try:
            await over.wait()
        finally:
            timer.cancel()


def segment(name: str) -> str:
    """A name as one part of a path."""
    return quote(name, safe="")


def _parse(answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return {"message": answer[:200].decode(errors="replace")}  # of something between us and the server


def _refusal(status: int, parsed: Any) -> Refused:
    fields = parsed if isinstance(parsed, dict) else {}
    return Refused(
        str(fields.get("message", "refused")),
        int(fields.get("error_code", status)),
        retriable=fields.get("retriable") is True,
        details=fields.get("details"),
        validation_errors=tuple(map(str, fields.get("validation_errors") or ())),
    )
