"""Sockets whose URL says everything: `/ws/v1/consume` subscribes, on `/ws/v1/produce` each frame is a message."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from gateway.api.errors import error_of
from gateway.api.render import receipt_as_json
from gateway.auth.access import NOBODY, Access, Permission
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

_TEXTS = ("pattern", "mode", "group", "member", "filter")
_NUMBERS = ("credit", "credit_bytes", "batch", "invisible_ms")
_FLAGS = {"true": True, "1": True, "false": False, "0": False}
_FLAG_NAMES = ("auto_credit", "auto_ack")
CONSUME_QUERY = ("topic", "from", "start", *_TEXTS, *_NUMBERS, *_FLAG_NAMES)
PRODUCE_QUERY = ("topic", "partition", "key", "tag", "acks")
_TICKETS = ("ticket", "token")  # read before us


def consume_command(query: Mapping[str, str], gateway: Gateway, access: Access) -> Subscribe:
    """The `subscribe` that a URL stands for. Raises RequestError, StoreError for what would refuse it at once."""
    _check_known(query, CONSUME_QUERY, access)
    fields: dict[str, object] = {"id": 0, "op": "subscribe", "sub": SUB}
    for name in ("from", "start", *_TEXTS):
        if name in query:
            fields[name] = _start_position(query[name]) if name in ("from", "start") else query[name]
    for name in _NUMBERS:
        if name in query:
            fields[name] = _number(name, query[name])
    for name in _FLAG_NAMES:
        if name in query:
            if query[name] not in _FLAGS:
                raise invalid(f"{name}: must be true or false")
            fields[name] = _FLAGS[query[name]]
    if "topic" in query:
        fields["topics"] = query["topic"].split(",")
    if "group" in query:
        fields.setdefault("mode", "stream")
    command = parse_command(fields, gateway.limits)
    assert isinstance(command, Subscribe)
    ledger_of(command, gateway.limits)
    for topic in command.topics:
        access.check(Permission.RECEIVE, topic=topic)
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
    _check_known(query, PRODUCE_QUERY, access)
    topic = query.get("topic")
    if not topic:
        raise invalid("topic: is required")
    access.check(Permission.SEND, topic=topic)
    view = gateway.routes_table.topic(topic)
    partition = _number("partition", query["partition"]) if "partition" in query else None
    if partition is not None and partition >= view.partitions:
        raise RequestError(PARTITION_NOT_FOUND, "Partition not found.")
    acks_name = query.get("acks")
    if acks_name not in (None, "written", "flushed"):
        raise invalid('acks: must be "written" or "flushed"')
    acks = None if acks_name is None else Acks[acks_name.upper()]
    key = query["key"].encode() if "key" in query else None
    fields: dict[str, object] = {"tag": query["tag"]} if "tag" in query else {}
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


def _check_known(query: Mapping[str, str], known: tuple[str, ...], access: Access) -> None:
    if access is NOBODY:
        raise RequestError(UNAUTHENTICATED, "Say who you are: by header, by ticket, or by subprotocol.")
    for name in query:
        if name not in known and name not in _TICKETS:
            raise invalid(f"Unrecognized parameter: {name}")


def _start_position(text: str) -> object:
    """`from` and `start` in a URL: a word or a cursor, or epoch milliseconds."""
    return {"timestamp": int(text)} if text.isascii() and text.isdigit() and len(text) < 16 else text


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise invalid(f"{name}: must be a number")
    return int(text)
