"""Any request of Kafka's protocol, in any version of Apache's own definitions, to mq or to Kafka; and what of an answer
can be compared: names, ids, addresses and times differ from server to server."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from gateway.surfaces.kafka import schema
from gateway.surfaces.kafka.apis import API_VERSIONS, APIS
from gateway.surfaces.kafka.schema import Message, Reader
from tests.gateway.surfaces.kafka.definitions import message_definition
from tests.waiting import PATIENCE_S

CLOSED = "the connection is closed"
Answer = Message | str
"""What comes back: a message, or CLOSED."""


@cache
def _layout(name: str) -> dict[str, Any]:
    definition = message_definition(name)
    definition["fields"] = _of_plain_kinds(definition["fields"])
    return definition


def _of_plain_kinds(fields: list[list[Any]]) -> list[list[Any]]:
    """The fields as the schema knows them: records are bytes, numbers are decimal."""
    return [
        [
            name, "bytes" if kind == "records" else kind, versions, nullable,
            str(int(default, 16)) if isinstance(default, str) and default.startswith("0x") else default,
            None if inner is None else _of_plain_kinds(inner),
        ]
        for name, kind, versions, nullable, default, inner in fields
    ]  # fmt: skip


@cache
def _codec(name: str, version: int) -> tuple[schema.Read, schema.Write]:
    layout = _layout(name)
    return schema._struct_codec(layout["fields"], version, version >= layout["flexible"])


class Asker:
    """One connection, one request after the other."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.is_open = True

    def send(self, key: int, version: int, message: Message) -> None:
        """A request whose answer is not waited for."""
        name = f"{APIS[key].name}Request"
        is_flexible = version >= _layout(name)["flexible"]
        body = bytearray(struct.pack(">hhih", key, version, 7, -1) + (b"\0" if is_flexible else b""))
        _codec(name, version)[1](body, message)
        self._writer.write(struct.pack(">i", len(body)) + body)

    async def ask(self, key: int, version: int, message: Message, *, answered_in: int | None = None) -> Answer:
        """What is answered to a request, in its version or the one that is named."""
        self.send(key, version, message)
        try:
            async with asyncio.timeout(PATIENCE_S):
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                content = await self._reader.readexactly(size)
        except TimeoutError as error:
            raise AssertionError(f"no answer to {APIS[key].name} version {version}: {message}") from error
        except (asyncio.IncompleteReadError, ConnectionError):
            self.is_open = False
            return CLOSED
        assert content[:4] == struct.pack(">i", 7), "the answer of another request"
        name = f"{APIS[key].name}Response"
        version = version if answered_in is None else answered_in
        reader = Reader(content, 4)
        if version >= _layout(name)["flexible"] and key != API_VERSIONS:
            reader.skip_tags()
        answer: Message = _codec(name, version)[0](reader)
        assert reader.at == len(content), "bytes behind the answer"
        return answer


@asynccontextmanager
async def asking(address: str) -> AsyncIterator[Asker]:
    """A connection to "host:port"."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Asker(reader, writer)
    finally:
        writer.close()


_NODES = frozenset(("node_id", "broker_id", "controller_id", "leader_id", "port", "producer_id", "base_offset"))
_FROM_ONE = frozenset(("session_id", "generation_id", "timestamp", "log_append_time_ms", "session_lifetime_ms"))
_TEXTS = frozenset(("error_message", "batch_index_error_message"))
_LEFT_OUT = _TEXTS | {"throttle_time_ms", "host", "cluster_id", "api_keys", "mechanisms", "client_host"}


def comparable(value: Any, own: str, name: str = "") -> Any:
    """A part of an answer with what may differ replaced by a word for it. `own`: the name that is in the request for
    this version alone. Members that are made up are called `no-...`."""
    if isinstance(value, dict):
        return {field: comparable(one, own, field) for field, one in value.items() if field not in _LEFT_OUT}
    if isinstance(value, list):
        if name in ("replica_nodes", "isr_nodes"):
            return len(value)
        rows = [comparable(one, own, name) for one in value]
        if rows and isinstance(rows[0], dict) and "partition_index" in rows[0]:
            rows.sort(key=lambda row: int(row["partition_index"]))
        return rows
    if isinstance(value, bytes):
        return "bytes" if value else ""
    if isinstance(value, str):
        if name == "resource_name" and value.isdigit():
            return "a number"
        is_made = name in ("member_id", "leader") and value and not value.startswith("no-")
        return "an id" if is_made else value.replace(own, "OWN")
    if (name in _NODES and value >= 0) or (name in _FROM_ONE and value > 0):
        return "a number"
    return value
