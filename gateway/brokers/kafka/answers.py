"""A connection of aiokafka whose answers are read here, to where they stay. aiokafka opens it, logs in and ends it;
what reads answers in it by default copies each byte four times, and takes a turn of a task for each.

    frame     i32 size, then so many bytes: i32 correlation id | the message

Of a connection this is used, beside what is public: `_requests` (a correlation id, a request, who waits, for each that
has no answer), `_read_task`, `_writer`, `_last_action`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import AIOKafkaConnection, CloseReason

from store.limits import KiB, MiB
from store.uninitialized import uninitialized

log = logging.getLogger(__name__)

ANSWER_BYTES_MAX = 256 * MiB
"""More than is ever asked for: what claims to be larger is no answer of Kafka's."""

DEAD_AFTER_MS = 5_000
"""A connection whose bytes are not acknowledged for so long is given up (TCP_USER_TIMEOUT)."""

GROUP = ConnectionGroup.COORDINATION
"""Of aiokafka's connections: it sends nothing over these by itself."""

_I32 = struct.Struct(">i")

_READ = memoryview(bytearray(64 * KiB))
"""Where the beginning of an answer is read to; it is copied before anything else is read."""


class Asked(Protocol):
    """A request that was sent."""

    def read(self, answer: memoryview) -> Any:
        """What the answer says, in the version that was asked for; nobody else has its bytes. Raises ValueError or
        struct.error for what is none, which ends the connection."""
        ...


async def connected(client: AIOKafkaClient, node: int) -> AIOKafkaConnection | None:
    """The connection to a node whose answers are read here; None: it cannot be reached."""
    if not await client.ready(node, group=GROUP):
        return None
    connection = client._conns[node, GROUP]
    if (writer := connection._writer) is None:
        return None  # it has just ended
    former = writer.transport.get_protocol()
    if not isinstance(former, Answers):
        watch_over(connection)
        connection._read_task.cancel()
        writer.transport.set_protocol(Answers(connection, former))
    return connection


def watch_over(connection: AIOKafkaConnection) -> None:
    """Have a connection end when its bytes are not acknowledged any more: behind a partition of the network they would
    be held, and delivered later."""
    if connection._writer is not None and (own := connection._writer.get_extra_info("socket")) is not None:
        with suppress(OSError):
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_MS)


class Answers(asyncio.BufferedProtocol):
    """asyncio's protocol of one connection."""

    def __init__(self, connection: AIOKafkaConnection, former: Any) -> None:
        """`former`: aiokafka's protocol, which is told of all but what is read."""
        self._connection, self._former = connection, former
        self._begun = b""  # of a size
        self._whole = bytearray()  # an answer, once its size is known; up to `_room` it is there
        self._room: memoryview | None = None

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio.BufferedProtocol."""
        return _READ if self._room is None else self._room

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio.BufferedProtocol."""
        try:
            if self._room is None:
                self._cut(_READ[:nbytes])
            elif nbytes < len(self._room):
                self._room = self._room[nbytes:]
            else:
                whole, self._whole, self._room = self._whole, bytearray(), None
                self._came(memoryview(whole))
        except Exception as error:
            log.exception("no answer of Kafka host=%s port=%d", self._connection.host, self._connection.port)
            self._connection.close(reason=CloseReason.OUT_OF_SYNC, exc=error)

    def _cut(self, data: memoryview) -> None:
        """Raises as `Asked.read`."""
        if self._begun:
            data, self._begun = memoryview(self._begun + data), b""
        at = 0
        while at + _I32.size <= len(data):
            (size,) = _I32.unpack_from(data, at)
            if not _I32.size <= size <= ANSWER_BYTES_MAX:
                raise ValueError(f"an answer of {size} bytes")
            at += _I32.size
            whole = uninitialized(size)
            there = data[at : at + size]
            whole[: len(there)] = there
            at += len(there)
            if len(there) < size:
                self._whole, self._room = whole, memoryview(whole)[len(there) :]
                return
            self._came(memoryview(whole))
        self._begun = bytes(data[at:])

    def _came(self, answer: memoryview) -> None:
        """Raises as `Asked.read`."""
        connection = self._connection
        if not connection.connected():
            return  # it was given up: all who waited have been told
        if not connection._requests:
            raise ValueError("an answer to no request")
        correlation_id, asked, waiting = connection._requests[0]
        (found,) = _I32.unpack_from(answer)
        if found != correlation_id:
            raise ValueError(f"an answer to request {found}; that to {correlation_id} is the next")
        said = None if waiting.done() else asked.read(answer[_I32.size :])
        connection._requests.popleft()
        connection._last_action = monotonic()
        if not waiting.done():
            waiting.set_result(said)

    def eof_received(self) -> None:
        """See asyncio.Protocol: the connection ends."""

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio.BaseProtocol."""
        self._connection.close(reason=CloseReason.CONNECTION_BROKEN, exc=exc)
        self._former.connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._former.pause_writing()

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self._former.resume_writing()
