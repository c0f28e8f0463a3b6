"""What is asked over HTTP: topics, schedules, groups. One call a route of the server's native API (docs/http.md)."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from mq.connection import Connection
from mq.errors import Refused
from mq.transport import Transport
from mq.values import encode_json


class Http:
    """Requests with the client's token."""

    def __init__(self, transport: Transport, connection: Connection) -> None:
        self._transport = transport
        self._connection = connection

    async def call(self, method: str, path: str, query: dict[str, object] | None = None, body: object = None) -> Any:
        """Any route; its answer's JSON, None without one. Raises Refused for a status from 400 on, ConnectionLost
        without an answer."""
        given = {name: str(value) for name, value in (query or {}).items() if value is not None}
        encoded = None if body is None else encode_json(body)
        token = await self._connection.token()
        status, answer = await self._transport.request(method, path, given, encoded, token)
        parsed = _parse(answer)
        if status >= 400:
            raise _refusal(status, parsed)
        return parsed


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
