"""Sockets whose URL says everything: `/ws/v1/consume` subscribes, on `/ws/v1/produce` each frame is a message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from msgspec.structs import asdict

from gateway.api.errors import error_of
from gateway.api.light import check_receives
from gateway.api.render import receipt_as_json
from gateway.api.shapes.base import AnyShape, load_texts
from gateway.api.shapes.queries import ConsumeQuery, ProduceQuery
from gateway.auth.access import NOBODY, Access, Permission
from gateway.auth.credentials import IN_QUERY
from gateway.codec.records import ProduceRecord, parse_raw_record
from gateway.errors import PARTITION_NOT_FOUND, UNAUTHENTICATED, RequestError, invalid
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.ws.commands import Subscribe
from gateway.surfaces.ws.conversation import Conversation
from gateway.surfaces.ws.parse import parse_command
from gateway.surfaces.ws.protocol import error_fields
from gateway.surfaces.ws.session import REFUSALS, ledger_of
from store.types import Acks

SUB = "s"
"""Name of the subscription that the URL makes."""

_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def consume_command(query: Mapping[str, str], gateway: Gateway, access: Access) -> Subscribe:
    """The `subscribe` that a URL stands for. Raises RequestError, StoreError for what would refuse it at once."""
    asked = _read(ConsumeQuery, query, gateway, access)
    given: dict[str, Any] = {name: value for name, value in asdict(asked).items() if value is not None}
    fields: dict[str, object] = {"id": 0, "op": "subscribe", "sub": SUB}
    for name, text in given.items():
        match name:
            case "topic":
                fields["topics"] = text.split(",")
            case "from_" | "start":
                fields[name.rstrip("_")] = _start_position(text)
            case "auto_credit" | "auto_ack":
                fields[name] = _FLAGS[text]
            case _:
                fields[name] = text
    if asked.group is not None:
        fields.setdefault("mode", "stream")
    command = parse_command(fields, gateway.limits)
    assert isinstance(command, Subscribe)
    ledger_of(command, gateway.limits)
    check_receives(access, command.topics, command.queue)
    for topic in command.topics:
        gateway.routes_table.topic(topic)
    if command.group is not None:
        access.check(Permission.RECEIVE, group=command.group)
    return command


@dataclass(frozen=True, slots=True)
class Target:
    """Where the messages of a socket go."""

    topic: str
    partition: int | None
    key: bytes | None
    fields: dict[str, object]
    acks: Acks | None


def produce_target(query: Mapping[str, str], gateway: Gateway, access: Access) -> Target:
    """Where a URL sends to. Raises RequestError, StoreError."""
    asked = _read(ProduceQuery, query, gateway, access)
    topic, partition = asked.topic, asked.partition
    if not topic:
        raise invalid("topic: is required")
    access.check(Permission.SEND, topic=topic)
    view = gateway.routes_table.topic(topic)
    if partition is not None and not 0 <= partition < view.partitions:
        raise RequestError(PARTITION_NOT_FOUND, "Partition not found.")
    acks = None if asked.acks is None else Acks[asked.acks.upper()]
    key = None if asked.key is None else asked.key.encode()
    fields: dict[str, object] = {} if asked.tag is None else {"tag": asked.tag}
    if asked.queues is not None:
        fields["queues"] = asked.queues.split(",")
    target = Target(topic, partition, key, fields, acks)
    _record(target, b"")  # refused here and now, if it would always be
    return target


class Sender:
    """Stores every frame of a socket as one message, and answers each in order."""

    def __init__(self, gateway: Gateway, target: Target, conversation: Conversation) -> None:
        self._gateway = gateway
        self._target = target
        self._conversation = conversation
        self._count = 0
        self._before: asyncio.Event = asyncio.Event()  # the answer to the frame before this one is out
        self._before.set()

    async def take(self, frame: str | bytes) -> None:
        """Store one frame. Answers come later, in order."""
        self._count += 1
        self._gateway.stats.ws_received_frame_count += 1
        before, self._before = self._before, asyncio.Event()
        value = frame.encode() if isinstance(frame, str) else frame
        await self._conversation.in_flight.start(self._send(self._count, value, before, self._before), len(value))

    async def _send(self, number: int, value: bytes, before: asyncio.Event, after: asyncio.Event) -> None:
        target = self._target
        try:
            self._conversation.check_staying()
            self._conversation.charge(len(value))
            self._conversation.access.check(Permission.SEND, topic=target.topic)
            (receipt,) = await self._gateway.producer.produce(
                target.topic,
                [_record(target, value)],
                partition=target.partition,
                json_values=False,
                acks=target.acks,
            )
            answer = {"ok": True, "n": number, "acks": receipt.acks.name.lower(), **receipt_as_json(receipt)}
        except REFUSALS as error:
            answer = {"ok": False, "n": number, **error_fields(error_of(error))}
        await before.wait()
        await self._conversation.put(orjson.dumps(answer))
        after.set()


def _record(target: Target, value: bytes) -> ProduceRecord:
    return parse_raw_record(target.fields, target.key, value)


def _read(shape: type[AnyShape], query: Mapping[str, str], gateway: Gateway, access: Access) -> AnyShape:
    if access is NOBODY:
        raise RequestError(UNAUTHENTICATED, "Credentials are missing: send them by header, ticket or subprotocol.")
    texts = {name: text for name, text in query.items() if name not in IN_QUERY}
    return load_texts(shape, texts, gateway.limits)


def _start_position(text: str) -> object:
    """`from` and `start` in a URL: a word or a cursor, or epoch milliseconds."""
    return {"timestamp": int(text)} if text.isascii() and text.isdigit() and len(text) < 16 else text
