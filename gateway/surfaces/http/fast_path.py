"""The fast path: POSTs of one plain record, or of one raw batch, answered without aiohttp's tasks, requests and
responses. All records of one turn of the event loop that go to the same partition are one batch, one append and one
future.

`Connection` shows each request to the fast path before aiohttp does anything with it. The fast path accepts only
requests that the normal path would answer with success by the same steps: everything about the request is in the lists
of its form (`plain.py`), its caller is known and allowed, its record is neither delayed nor has an id. Any other
request goes to aiohttp untouched. When an append fails each request of it goes there too, and the normal path answers
the errors. So this file makes no error answer, and a request with an unknown header is never taken.

    read    head    -> what it asks for: once for equal heads (heads.py)
    take    request -> rights, topic, record: each time; into the turn's batch
    turn    batches -> one append each
    answer  append  -> an answer each, as its handler and `application.py` give it, but for the date and request id

Invariants
    F1  a record is checked before it joins a batch: one bad record fails nobody else's
    F2  a batch has BATCH_RECORDS_MAX records and BATCH_BYTES_MAX bytes at most; the next record begins another
    F3  records without a key of one turn and topic go to one partition, as those of one request do
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from time import perf_counter
from typing import NamedTuple

from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDictProxy

from gateway.api.producer import Begun, Receipt
from gateway.auth.access import Permission
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.surfaces.http.answers import REQUEST_ID, RequestIds
from gateway.surfaces.http.connection import Reply
from gateway.surfaces.http.context import Gateway, RouteStats
from gateway.surfaces.http.heads import HeadMemo
from gateway.surfaces.http.origins import Origins
from gateway.surfaces.http.plain import Asked, BatchForm, Form, RecordForm, Sent, is_plain
from gateway.surfaces.http.send_options import name_of_acks
from store.limits import KiB
from store.types import Acks, Appended, Buffer

log = logging.getLogger(__name__)

BATCH_RECORDS_MAX = 256
BATCH_BYTES_MAX = 256 * KiB
"""Records, and bytes of request bodies, of one batch: to answer so many takes a millisecond."""

_NAMED = b"%bMq-Acks: %b\r\nContent-Length: %%d\r\nDate: %b\r\nX-Request-Id: %%b\r\n\r\n%%b"
_STREAMED = b"%bTransfer-Encoding: chunked\r\nDate: %b\r\nX-Request-Id: %%b\r\n\r\n%%x\r\n%%b\r\n0\r\n\r\n"


class Plain(NamedTuple):
    """What the head of a request for the fast path means, and where its answer is counted."""

    asked: Asked
    records: RecordForm | None
    batches: BatchForm | None
    bytes_max: int
    headers: CIMultiDictProxy[str]
    stats: RouteStats


class _Waiting(NamedTuple):
    """A request whose record is in a batch."""

    plain: Plain
    sent: Sent
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
    """The fast path of one server, for these forms of requests."""

    def __init__(
        self,
        gateway: Gateway,
        origins: Origins,
        request_ids: RequestIds,
        *,
        records: Sequence[RecordForm],
        batches: Sequence[BatchForm],
    ) -> None:
        self.heads: HeadMemo[Plain] = HeadMemo()
        self._loop = asyncio.get_running_loop()
        self._authenticator = gateway.authenticator
        self._version = gateway.authenticator.version
        self._check_origin = origins.check
        self._producer = gateway.producer
        self._topic_of = gateway.routes_table.topic
        self._request_ids = request_ids
        self._records, self._batch_forms = records, batches
        self._stats = {
            name: gateway.stats.routes.setdefault(name, RouteStats())
            for form in (*records, *batches)
            for name in form.routes
        }
        self._bytes_max = gateway.limits.body_bytes_max
        self._batches: dict[_Way, _Batch] = {}  # of this turn
        # Limits of rate and the log of requests are for the normal path.
        self._is_open = gateway.rates is None and not gateway.config.access_log

    def read(self, message: RawRequestMessage) -> Plain | None:
        """See `connection.FastPath`."""
        if not (self._is_open and is_plain(message)):
            return None
        try:
            self._check_origin(message.headers)  # of these headers the same always
            for records in self._records:
                if (asked := records.read(message)) is not None:
                    return self._plain(message, asked, records, records, None)
            for batches in self._batch_forms:
                if (asked := batches.read(message)) is not None:
                    return self._plain(message, asked, batches, None, batches)
        except RequestError:  # for the normal path to answer
            pass
        return None

    def _plain(
        self,
        message: RawRequestMessage,
        asked: Asked,
        form: Form,
        records: RecordForm | None,
        batches: BatchForm | None,
    ) -> Plain:
        bytes_max = min(form.bytes_max, self._bytes_max)
        return Plain(asked, records, batches, bytes_max, message.headers, self._stats[asked.route])

    def is_repeatable(self, meaning: Plain) -> bool:
        """See `connection.FastPath`. Ids of requests differ."""
        return meaning.asked.is_repeatable and REQUEST_ID not in meaning.headers and self._allows(meaning)

    def bytes_max(self, meaning: Plain) -> int:
        """See `connection.FastPath`."""
        return meaning.bytes_max

    def _allows(self, meaning: Plain) -> bool:
        """Whether its caller is known and may send."""
        access = self._authenticator.known_access(meaning.headers)
        return access is not None and access.allows(Permission.SEND, topic=meaning.asked.topic)

    def take(self, meaning: Plain, data: bytes, start: int, reply: Reply) -> bool:
        """See `connection.FastPath`."""
        started_s = perf_counter()
        if self._version != self._authenticator.version:  # some token may have been revoked
            self._version = self._authenticator.version
            self.heads.clear()
        asked, form, batches, bytes_max, _, _ = meaning
        body_bytes = len(data) - start
        if body_bytes > bytes_max:
            return False
        try:
            if not self._allows(meaning):
                return False
            topic, partition, acks = asked[:3]
            if form is None:
                assert batches is not None
                self._begin_batch(meaning, batches, memoryview(data)[start:], reply, started_s)
                return True
            sent = form.sent(asked, data[start:], self._topic_of(topic))
            if sent is None:
                return False
            place = self._producer.place(topic, sent.record, partition)
        except Exception:  # nothing was stored: the normal path meets the same error, and answers it
            return False
        if place is None:
            return False
        self._join((topic, place[0], sent.json_values, acks), _Waiting(meaning, sent, reply, started_s), body_bytes)
        return True

    # ------------------------------------------------------------------------------------------------ records

    def _join(self, way: _Way, waiting: _Waiting, body_bytes: int) -> None:
        batches = self._batches
        if not batches:
            self._loop.call_soon(self._end_turn)  # behind all that has arrived: the loop reads every socket before
        batch = batches.get(way)
        if batch is None:
            batches[way] = batch = _Batch()
        elif len(batch.records) >= BATCH_RECORDS_MAX or batch.body_bytes + body_bytes > BATCH_BYTES_MAX:
            self._begin(way, batch)
            batches[way] = batch = _Batch()
        batch.records.append(waiting.sent.record)
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
            for waiting in batch.waiting:
                self._loop.call_soon(waiting.reply, None)
            return
        begun.outcome.add_done_callback(partial(self._answer, batch.waiting, begun))

    def _answer(self, waiting: list[_Waiting], begun: Begun, outcome: asyncio.Future[list[Appended]]) -> None:
        if outcome.cancelled() or outcome.exception() is not None:
            for one in waiting:
                self._loop.call_soon(one.reply, None)
            return
        offset, reached = self._producer.finish(begun)
        partition, now_ms = begun.partition, begun.now_ms
        ended_s = perf_counter()
        known: Plain | None = None
        template = b""
        new = tuple.__new__  # a NamedTuple's own constructor takes three times as long
        for own_offset, (plain, sent, reply, started_s) in enumerate(waiting, offset):
            if plain is not known:  # those of one client follow each other, with equal heads
                known, template = plain, _template(plain.asked, reached)
            own_ms = sent.record.timestamp_ms
            receipt = new(
                Receipt, (partition, own_offset, now_ms if own_ms is None else own_ms, None, None, reached, False)
            )
            assert plain.records is not None
            body = plain.records.answer(plain.asked, sent, receipt)
            self._reply(plain, template, body, reply, ended_s - started_s)

    # -------------------------------------------------------------------------------------------- raw batches

    def _begin_batch(self, plain: Plain, form: BatchForm, batch: Buffer, reply: Reply, started_s: float) -> None:
        """Raises what refuses the batch."""
        topic, partition, acks = plain.asked[:3]
        begun = self._producer.begin_batch(topic, partition, batch, acks=acks, is_numbered=False)
        begun.outcome.add_done_callback(partial(self._answer_batch, plain, form, begun, reply, started_s))

    def _answer_batch(
        self,
        plain: Plain,
        form: BatchForm,
        begun: Begun,
        reply: Reply,
        started_s: float,
        outcome: asyncio.Future[list[Appended]],
    ) -> None:
        if outcome.cancelled() or outcome.exception() is not None:
            reply(None)
            return
        receipt = self._producer.finish_batch(begun)
        body = form.answer(receipt)
        self._reply(plain, _template(plain.asked, receipt.acks), body, reply, perf_counter() - started_s)

    def _reply(self, plain: Plain, template: bytes, body: bytes, reply: Reply, took_s: float) -> None:
        plain.stats.answered(plain.asked.status, took_s)
        request_id = self._request_ids.of_headers(plain.headers).encode()
        try:
            if plain.asked.is_streamed:
                reply(template % (request_id, len(body), body))
            else:
                reply(template % (len(body), request_id, body))
        except Exception:  # of one connection; the others wait for their answers
            log.exception("an answer of the fast path failed")


def _template(asked: Asked, reached: Acks) -> bytes:
    """The answers to equal heads, but for id and body."""
    date = rfc822_formatted_time().encode()
    if asked.is_streamed:
        return _STREAMED % (asked.head, date)
    return _NAMED % (asked.head, name_of_acks(reached).encode(), date)
