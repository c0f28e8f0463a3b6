"""The fast path: POSTs of one plain JSON record, answered without aiohttp's tasks, requests and responses. All of one
turn of the event loop that go to the same partition are one batch, one append and one future.

`Connection` shows each request to the fast path before aiohttp does anything with it. The fast path accepts only
requests that the normal path would answer with 200 by the same steps: everything about the request is in the lists
below, its caller is known and allowed, its record is neither delayed nor has an id. Any other request goes to aiohttp
untouched. When an append fails each request of it goes there too, and the normal path answers the errors. So this file
makes no error answer, and a request with an unknown header is never taken.

    read    head    -> what it asks for: once for equal heads (gateway/surfaces/http/heads.py)
    take    request -> rights, origin, topic, record: each time; into the turn's batch
    turn    batches -> one append each
    answer  append  -> an answer each, as `produce.py` and `application.py` give it, but for the date and request id

Invariants
    F1  a record is checked before it joins a batch: one bad record fails nobody else's
    F2  a batch has BATCH_RECORDS_MAX records and BATCH_BYTES_MAX bytes at most; the next record begins another
    F3  records without a key of one turn and topic go to one partition, as those of one request do
"""

from __future__ import annotations

import asyncio
import logging
import re
from functools import partial
from time import perf_counter
from typing import NamedTuple

from aiohttp import HttpVersion11
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDictProxy, istr

from gateway.api.producer import Begun
from gateway.auth.access import Permission
from gateway.codec.records import Format, ProduceRecord, parse_envelope
from gateway.errors import RequestError
from gateway.surfaces.http.answers import REQUEST_ID, RequestIds
from gateway.surfaces.http.connection import Reply
from gateway.surfaces.http.context import Gateway, RouteStats
from gateway.surfaces.http.heads import HeadMemo
from gateway.surfaces.http.media import V2_TYPE, json_type, sent_format
from gateway.surfaces.http.origins import Origins
from gateway.surfaces.http.send_options import acks_named, name_of_acks
from store.limits import KiB
from store.types import Acks, Appended

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 * KiB
"""Larger bodies take the normal path; what the fast path saves would not show."""

BATCH_RECORDS_MAX = 256
BATCH_BYTES_MAX = 256 * KiB
"""Records, and bytes of request bodies, of one batch: to answer so many takes a millisecond."""

_CONTENT_TYPE, _ACCEPT = istr("Content-Type"), istr("Accept")

_PLAIN = (
    "Host", "User-Agent", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "Accept-Language",
    "Authorization", "Connection", "X-Request-Id", "Cache-Control", "Pragma",
)  # fmt: skip
PLAIN_HEADERS = frozenset(form.encode() for name in _PLAIN for form in (name, name.lower(), name.upper()))
"""Headers whose meaning the fast path knows, as clients write them."""

_TARGET = re.compile(
    r"/topics/([A-Za-z0-9._-]{1,255})(?:/partitions/([0-9]{1,9}))?(?:\?acks=(written|flushed))?", re.ASCII
)
_BODY = (
    b'{"offsets":[{"partition":%d,"offset":%d,"error_code":null,"error":null}],'
    b'"key_schema_id":null,"value_schema_id":null}'
)

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nMq-Acks: %b\r\n"
    b"Content-Length: %d\r\nDate: %b\r\nX-Request-Id: %b\r\n\r\n%b"
)


class Plain(NamedTuple):
    """What the head of a request for the fast path asks for, and where its answer is counted."""

    topic: str
    partition: int | None
    acks: Acks | None
    fmt: Format
    content_type: bytes
    headers: CIMultiDictProxy[str]
    stats: RouteStats


class _Waiting(NamedTuple):
    """A request whose record is in a batch."""

    plain: Plain
    reply: Reply
    started_s: float


class _Batch:
    """Records of one turn that go one way, and who waits for each."""

    __slots__ = ("body_bytes", "records", "waiting")

    def __init__(self) -> None:
        self.records: list[ProduceRecord] = []
        self.waiting: list[_Waiting] = []
        self.body_bytes = 0


_Way = tuple[str, int | None, bool, Acks | None]
"""Topic, partition (None: any), whether keys and values are JSON, level."""


class FastPath:
    """The fast path of one server."""

    def __init__(self, gateway: Gateway, origins: Origins, request_ids: RequestIds) -> None:
        self.heads: HeadMemo[Plain] = HeadMemo()
        self._loop = asyncio.get_running_loop()
        self._authenticator = gateway.authenticator
        self._version = gateway.authenticator.version
        self._check_origin = origins.check
        self._producer = gateway.producer
        self._topic_of = gateway.routes_table.topic
        self._request_ids = request_ids
        self._stats = [gateway.stats.routes.setdefault(name, RouteStats()) for name in ("produce", "produce_partition")]
        self._bytes_max = min(BODY_BYTES_MAX, gateway.limits.body_bytes_max)
        self._records_max = gateway.limits.records_per_request_max
        self._batches: dict[_Way, _Batch] = {}  # of this turn
        # Limits of rate and the log of requests are for the normal path.
        self._is_open = gateway.rates is None and not gateway.config.access_log

    def read(self, message: RawRequestMessage) -> Plain | None:
        """See `connection.FastPath`."""
        if not (
            self._is_open
            and message.method == "POST"
            and message.version == HttpVersion11
            and not (message.should_close or message.upgrade or message.chunked)
            and (match := _TARGET.fullmatch(message.path)) is not None
            and PLAIN_HEADERS.issuperset([name for name, _ in message.raw_headers])
        ):
            return None
        headers = message.headers
        try:
            content_type = json_type(headers.get(_ACCEPT, "*/*"), V2_TYPE)
            fmt = sent_format(headers.get(_CONTENT_TYPE, ""))
        except RequestError:  # for the normal path to answer
            return None
        if fmt is None:
            return None
        topic, number, acks = match.groups()
        partition = None if number is None else int(number)
        stats = self._stats[0 if partition is None else 1]
        return Plain(topic, partition, acks_named(acks), fmt, content_type.encode(), headers, stats)

    def is_repeatable(self, meaning: Plain) -> bool:
        """See `connection.FastPath`. Ids of requests differ."""
        return REQUEST_ID not in meaning.headers

    def principal_of(self, meaning: Plain) -> str | None:
        """See `connection.FastPath`."""
        access = self._authenticator.known_access(meaning.headers)
        return None if access is None else access.principal

    def take(self, meaning: Plain, body: bytes, reply: Reply) -> bool:
        """See `connection.FastPath`."""
        started_s = perf_counter()
        if len(body) > self._bytes_max:
            return False
        if self._version != self._authenticator.version:  # some token may have been revoked
            self._version = self._authenticator.version
            self.heads.clear()
        topic, partition, acks, fmt, _, headers, _ = meaning
        try:
            self._check_origin(headers)
            access = self._authenticator.known_access(headers)
            if access is None or not access.allows(Permission.SEND, topic=topic):
                return False
            raw_keys = self._topic_of(topic).raw_keys
            records = parse_envelope(body, fmt, records_max=self._records_max, raw_keys=raw_keys)
            if len(records) != 1:
                return False
            place = self._producer.place(topic, records[0], partition)
        except Exception:  # nothing was stored: the normal path meets the same error, and answers it
            return False
        if place is None:
            return False
        self._join(
            (topic, place[0], fmt is Format.JSON, acks), records[0], _Waiting(meaning, reply, started_s), len(body)
        )
        return True

    def _join(self, way: _Way, record: ProduceRecord, waiting: _Waiting, body_bytes: int) -> None:
        batches = self._batches
        if not batches:
            self._loop.call_soon(self._end_turn)  # behind all that has arrived: the loop reads every socket before
        batch = batches.get(way)
        if batch is None:
            batches[way] = batch = _Batch()
        elif len(batch.records) >= BATCH_RECORDS_MAX or batch.body_bytes + body_bytes > BATCH_BYTES_MAX:
            self._begin(way, batch)
            batches[way] = batch = _Batch()
        batch.records.append(record)
        batch.waiting.append(waiting)
        batch.body_bytes += body_bytes

    def _end_turn(self) -> None:
        batches, self._batches = self._batches, {}
        for way, batch in batches.items():
            self._begin(way, batch)

    def _begin(self, way: _Way, batch: _Batch) -> None:
        topic, partition, json_values, acks = way
        try:
            begun = self._producer.begin(topic, batch.records, partition=partition, json_values=json_values, acks=acks)
        except Exception:  # nothing was stored; see `take`
            self._give_back(batch.waiting)
            return
        begun.outcome.add_done_callback(partial(self._answer, batch.waiting, begun))

    def _give_back(self, waiting: list[_Waiting]) -> None:
        for _, reply, _ in waiting:
            self._loop.call_soon(reply, None)

    def _answer(self, waiting: list[_Waiting], begun: Begun, outcome: asyncio.Future[list[Appended]]) -> None:
        if outcome.cancelled() or outcome.exception() is not None:
            self._give_back(waiting)
            return
        offset, reached = self._producer.finish(begun)
        acks, date = name_of_acks(reached).encode(), rfc822_formatted_time().encode()
        ended_s = perf_counter()
        for own_offset, (plain, reply, started_s) in enumerate(waiting, offset):
            body = _BODY % (begun.partition, own_offset)
            plain.stats.answered(200, ended_s - started_s)
            request_id = self._request_ids.of_headers(plain.headers).encode()
            try:
                reply(_ANSWER % (plain.content_type, acks, len(body), date, request_id, body))
            except Exception:  # of one connection; the others wait for their answers
                log.exception("an answer of the fast path failed")
