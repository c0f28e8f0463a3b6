"""Plain requests of the native API, for the fast path: one message that is sent; receive and ack of queue mode; a topic
that is made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import msgspec
import orjson
from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.acks import begin_ack
from gateway.api.producer import Receipt
from gateway.api.shapes.base import load_json
from gateway.api.shapes.groups import RECEIVE_DEFAULTS, AckReceipts, ReceiveBody
from gateway.api.shapes.queries import SendRawQuery
from gateway.auth.access import Permission
from gateway.codec import cloudevents
from gateway.codec.records import ProduceRecord
from gateway.groups.machines.copies import check_group_name
from gateway.groups.protocol import Receive, Received, Settled, receipts_of
from gateway.routing.base import TopicView
from gateway.settings.limits import Limits
from gateway.surfaces.http.caller import Caller
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import JSON_TYPE, json_type
from gateway.surfaces.http.plain import BODY_BYTES_MAX, TOPIC, Asked, Call, Sent, head_of
from gateway.surfaces.http.reading import query_of
from gateway.surfaces.http.routes import SMALL_BODY_BYTES_MAX
from gateway.surfaces.http.send_options import acks_named
from gateway.surfaces.native.groups import (
    RENDERED_A_TURN,
    admitted,
    check_may_have,
    check_still,
    few_as_json,
    hand_out,
    leased,
    leased_as_json,
    note_handed_out,
    results_as_answer,
    wants_raw,
)
from gateway.surfaces.native.raw import record_of
from gateway.surfaces.native.topics import shown_natively, topic_made
from store.errors import UnknownQueue
from store.limits import HEADERS_BYTES_MAX, KEY_BYTES_MAX, RECORD_BYTES_MAX, MiB

_TARGET = re.compile(rf"/mq/v1/topics/{TOPIC}/messages(?:\?.*)?", re.ASCII)
_SENT = b'{"topic":"%b","partition":%d,"offset":%d,"message_id":"%d-%d-%d","timestamp":%d}'
"""What `receipt_as_answer` makes of a receipt without a fate of its own."""

assert BODY_BYTES_MAX + KEY_BYTES_MAX + HEADERS_BYTES_MAX <= RECORD_BYTES_MAX, "no plain message is too large"


class PlainMessages:
    """The body is the record's value; all else of it is in the head. See `http/plain.py`."""

    routes = ("produce_raw",)
    bytes_max = BODY_BYTES_MAX

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`."""
        match = _TARGET.fullmatch(message.path)
        if match is None:
            return None
        headers = message.headers
        content_type = json_type(headers.get(hdrs.ACCEPT, "*/*"), JSON_TYPE)
        media = headers.get(hdrs.CONTENT_TYPE, "").partition(";")[0].strip().lower()
        query = query_of(SendRawQuery, message.url.query, self._limits)
        if media == cloudevents.STRUCTURED_TYPE or query.tombstone == "true" or query.selector is not None:
            return None  # their bodies are looked at, or their partitions chosen otherwise
        return Asked(
            match[1], None, acks_named(query.acks), "produce_raw", head_of("201 Created", content_type),
            detail=record_of(headers, query, b""), status=201, is_repeatable=query.key is None,
        )  # fmt: skip

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | None:
        """See `plain.RecordForm`."""
        record: ProduceRecord = asked.detail
        return record._replace(value=body), False, view.topic_id

    def answer(self, asked: Asked, record: ProduceRecord, detail: int, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        partition, offset, time_ms = receipt[:3]
        return _SENT % (asked.topic.encode(), partition, offset, detail, partition, offset, time_ms)


_NEW_TOPIC = re.compile(f"/mq/v1/topics/{TOPIC}", re.ASCII)
_GROUP_TARGET = r"/mq/v1/groups/([A-Za-z0-9._-]{1,255})/messages:"
RECEIVE_BYTES_MAX = 1 * MiB
"""Of records that a receive asks for, beyond which the normal path makes its answer: it copies less."""


class _PlainCall:
    """What the requests of queue mode have in common; see `plain.CallForm`."""

    routes: tuple[str, ...]
    bytes_max: int

    def __init__(self, gateway: Gateway, route: str) -> None:
        self._gateway = gateway
        self.routes = (route,)
        self._target = re.compile(f"{_GROUP_TARGET}{route}", re.ASCII)

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`. Raises RequestError where the client takes no JSON."""
        match = self._target.fullmatch(message.path)
        if match is None or wants_raw(message.headers):
            return None
        head = head_of("200 OK", json_type(message.headers.get(hdrs.ACCEPT, "*/*"), JSON_TYPE))
        return Asked("", None, None, self.routes[0], head, group=match[1], permission=Permission.RECEIVE)


class PlainReceives(_PlainCall):
    """Receives that find records at once, or need not wait; see `plain.CallForm`. To wait is for the handler."""

    bytes_max = BODY_BYTES_MAX

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "receive")
        # The last body, what it asks for, and the same without waiting: consumers repeat theirs.
        self._last: tuple[bytes, Receive, Receive] = b"", RECEIVE_DEFAULTS, RECEIVE_DEFAULTS

    def begin(self, asked: Asked, body: bytes, caller: Caller, call: Call) -> None:
        """See `plain.CallForm`."""
        gateway, group = self._gateway, asked.group
        assert group is not None
        known, wanted, at_once = self._last
        if body != known:
            wanted = load_json(ReceiveBody, body, gateway.limits).request()
            at_once = replace(wanted, wait_ms=0)
            self._last = body, wanted, at_once
        if wanted.max_bytes > RECEIVE_BYTES_MAX:
            raise _TooLarge

        def told(received: Received | None) -> None:
            if received is None:
                call.serve(self._served(group, wanted, at_once, caller))
                return
            if wanted.wait_ms and not received.runs:
                call.answer(None)
                return
            try:
                check_may_have(group, wanted, caller)
                text = few_as_json(gateway, received)
                is_given = caller.is_there() and caller.allowance.hold(len(text))
            except Exception:  # for the handler to answer
                is_given = False
            if not is_given:
                call.serve(self._given_back(group, received))
                return
            note_handed_out(gateway, group, wanted, caller, received, len(text))
            call.answer(text)

        request = admitted(gateway, group, at_once, caller)
        is_short = wanted.max_messages <= RENDERED_A_TURN
        if not (is_short and gateway.groups.begin_receive(group, request, told)):
            call.serve(self._served(group, wanted, at_once, caller))

    async def _given_back(self, group: str, received: Received) -> None:
        await self._gateway.groups.give_back(group, receipts_of(received.runs))

    async def _served(self, group: str, wanted: Receive, at_once: Receive, caller: Caller) -> bytes | None:
        """What no go of receives has found, or may find."""
        gateway = self._gateway
        received = await leased(gateway, group, at_once, caller)
        if wanted.wait_ms and not received.runs:
            return None
        text = await leased_as_json(gateway, group, received)
        await check_still(group, wanted, caller, gateway.groups, received)
        await hand_out(gateway, group, wanted, caller, received, len(text))
        return text


class PlainAcks(_PlainCall):
    """Acks by receipts; see `plain.CallForm`. What was acked may be acked again."""

    bytes_max = SMALL_BODY_BYTES_MAX

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway, "ack")

    def begin(self, asked: Asked, body: bytes, caller: Caller, call: Call) -> None:
        """See `plain.CallForm`."""
        gateway = self._gateway
        assert asked.group is not None
        check_group_name(asked.group)
        wanted = load_json(AckReceipts, body, gateway.limits)
        acking = begin_ack(gateway.groups, gateway.leases, asked.group, wanted.receipts)
        acking.add_done_callback(partial(_acked, call))


def _acked(call: Call, acking: asyncio.Future[Sequence[Settled]]) -> None:
    is_done = not acking.cancelled() and acking.exception() is None
    call.answer(results_as_answer(acking.result()) if is_done else None)


class _TooLarge(Exception):
    """It is for the handler."""


class PlainTopics:
    """Topics that are not there, to be made; see `plain.CallForm`. Whoever makes thousands names each once, so no head
    comes twice."""

    routes = ("create_topic",)
    bytes_max = BODY_BYTES_MAX

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`."""
        match = _NEW_TOPIC.fullmatch(message.path)
        if match is None:
            return None
        head = head_of("201 Created", json_type(message.headers.get(hdrs.ACCEPT, "*/*"), JSON_TYPE))
        return Asked(
            match[1], None, None, "create_topic", head,
            status=201, is_repeatable=False, permission=Permission.CREATE, action="topic.create",
        )  # fmt: skip

    def begin(self, asked: Asked, body: bytes, caller: Caller, call: Call) -> None:
        """See `plain.CallForm`."""
        call.serve(self._made(asked, body))

    async def _made(self, asked: Asked, body: bytes) -> bytes | None:
        gateway = self._gateway
        with suppress(UnknownQueue):
            gateway.routes_table.topic(asked.topic)
            return None  # whether it is as asked for is for the handler to say
        view, _ = await topic_made(gateway, asked.topic, body)
        return orjson.dumps(shown_natively(gateway, view), default=msgspec.to_builtins)
