"""The fast path: POSTs of plain records, or of one raw batch, pulls, what consumers of queue mode ask for all the time,
and topics that are made by the thousand, answered without aiohttp's requests and responses.

All records of one turn of the event loop that go to the same partition are one batch, one append and one future
(gateway/api/turn_batches.py).

`Connection` shows each request to the fast path before aiohttp does anything with it. The fast path accepts only
requests that the normal path would answer with success by the same steps: everything about the request is in the lists
of its form (`plain.py`), its caller is known and allowed, its record is neither delayed nor has an id. Any other
request goes to aiohttp untouched. When an append or a call fails each request of it goes there too, and the normal path
answers the errors, or finds another broker. Three errors are told here: that the answer of another node was lost, as
the records may be stored and the normal path would send them again; that a broker could not be reached, once that took
WAITED_S, and that a partition is still sealed where a request with several records was held for it, as the normal path
would wait as long again. A request with an unknown header is never taken.

    read    head    -> what it asks for: once for equal heads (heads.py)
    take    request -> rights, topic, record: each time; into the turn's batch
    turn    batches -> one append each; raw batches of a turn, and these, are written together
    answer  append  -> an answer each, as its handler and `application.py` give it, but for the date and request id
    call    what is more than one append: a receive and an ack are answered by who writes those of many; what may
            wait for something else has a task of its own, with its line of the trail where the route has one

Invariants
    F1  what is read of large bodies counts in its turn (store/turns.py); where that is full, aiohttp gets them
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from aiohttp import hdrs
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDictProxy

from gateway.api.errors import error_of
from gateway.api.producer import Begun, EncodedColumns, Receipt, StoredBatch
from gateway.api.trail_files import Act, Outcome
from gateway.api.turn_batches import TurnBatch, TurnBatches, is_to_be_told, once_done
from gateway.api.turns import COUNTED_BYTES
from gateway.auth.access import Access
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.surfaces.http.admission import payer_of
from gateway.surfaces.http.answer_memory import SMALL_BYTES, Allowance
from gateway.surfaces.http.answers import RequestIds, error_answer
from gateway.surfaces.http.auditing import act_of, fields_of
from gateway.surfaces.http.buffers_body import JOINED_BYTES_MAX
from gateway.surfaces.http.caller import Caller
from gateway.surfaces.http.connection import Client
from gateway.surfaces.http.context import Gateway, RouteStats
from gateway.surfaces.http.heads import HeadMemo
from gateway.surfaces.http.media import JSON_TYPE
from gateway.surfaces.http.origins import Origins
from gateway.surfaces.http.plain import (
    Asked,
    BatchForm,
    CallForm,
    Form,
    Many,
    RecordForm,
    Text,
    Whole,
    head_of,
    is_plain,
)
from gateway.surfaces.http.send_options import name_of_acks
from store.errors import SealedQueue, StoreError
from store.turns import stretches
from store.types import Acks, Appended, Buffer

log = logging.getLogger(__name__)

_NAMED = b"%bMq-Acks: %b\r\nContent-Length: %%d\r\nDate: %b\r\nX-Request-Id: %%b\r\n\r\n%%b"
_UNNAMED = b"%bContent-Length: %%d\r\nDate: %b\r\nX-Request-Id: %%b\r\n\r\n%%b"
_STREAMED = b"%bTransfer-Encoding: chunked\r\nDate: %b\r\nX-Request-Id: %%b\r\n\r\n%%x\r\n%%b\r\n0\r\n\r\n"
_ANSWER_FAILED = "an answer of the fast path failed"


class Plain(NamedTuple):
    """What the head of a request for the fast path means, and where its answer is counted. `request_id`: the one that
    its client has sent."""

    asked: Asked
    records: RecordForm | None
    batches: BatchForm | None
    calls: CallForm | None
    bytes_max: int
    headers: CIMultiDictProxy[str]
    stats: RouteStats
    request_id: str | None


_Waiting = tuple[Plain, ProduceRecord, Any, Client]
"""A request whose record is in a batch; what its form has to know for the answer."""


_Batch = TurnBatch[_Waiting]

_BegunBatch = tuple[Plain, BatchForm, Begun, Client, float]
"""A request whose raw batch is on its way, and since when."""


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
        calls: Sequence[CallForm],
        puts: Sequence[CallForm] = (),
        gets: Sequence[CallForm] = (),
    ) -> None:
        """`puts`, `gets`: calls by PUT and GET; all others are by POST."""
        self.heads: HeadMemo[Plain] = HeadMemo()
        self._loop = asyncio.get_running_loop()
        self._authenticator = gateway.authenticator
        self._version = gateway.authenticator.version
        self._asks = gateway.authenticator.is_required  # else every client may do everything
        self._check_origin = origins.check
        self._producer = gateway.producer
        self._topic_of = gateway.routes_table.topic
        self._request_ids = request_ids
        self._records, self._batch_forms, self._call_forms = records, batches, calls
        self._forms_of = {hdrs.METH_PUT: puts, hdrs.METH_GET: gets}
        self._trail = gateway.trail
        self._stats = {
            name: gateway.stats.routes.setdefault(name, RouteStats())
            for form in (*records, *batches, *calls, *puts, *gets)
            for name in form.routes
        }
        self._bytes_max = gateway.limits.body_bytes_max
        self._answers, self._answering_bytes_max = gateway.stats.answers, gateway.limits.answering_bytes_max
        self._serving: set[asyncio.Task[None]] = set()
        self._turn: TurnBatches[_Waiting] = TurnBatches(
            gateway.producer, answer=self._answer, give_back=self._give_back, meanwhile=self._make_answers
        )
        self._begun: list[_BegunBatch] = []  # raw batches, of this turn
        # Limits of rate and the log of requests are for the normal path.
        self._is_open = gateway.rates is None and not gateway.config.access_log

    def read(self, message: RawRequestMessage) -> Plain | None:
        """See `connection.FastPath`."""
        if not (self._is_open and is_plain(message)):
            return None
        try:
            self._check_origin(message.headers)  # of these headers the same always
            if message.method != hdrs.METH_POST:
                for form in self._forms_of[message.method]:
                    if (asked := form.read(message)) is not None:
                        return self._plain(message, asked, form, calls=form)
                return None
            for records in self._records:
                if (asked := records.read(message)) is not None:
                    return self._plain(message, asked, records, records=records)
            for batches in self._batch_forms:
                if (asked := batches.read(message)) is not None:
                    return self._plain(message, asked, batches, batches=batches)
            for calls in self._call_forms:
                if (asked := calls.read(message)) is not None:
                    return self._plain(message, asked, calls, calls=calls)
        except RequestError:  # for the normal path to answer
            pass
        return None

    def _plain(
        self,
        message: RawRequestMessage,
        asked: Asked,
        form: Form,
        *,
        records: RecordForm | None = None,
        batches: BatchForm | None = None,
        calls: CallForm | None = None,
    ) -> Plain:
        bytes_max = min(form.bytes_max, self._bytes_max)
        headers = message.headers
        request_id = self._request_ids.sent_in(headers)
        return Plain(asked, records, batches, calls, bytes_max, headers, self._stats[asked.route], request_id)

    def is_repeatable(self, meaning: Plain) -> bool:
        """See `connection.FastPath`."""
        return meaning.asked.is_repeatable and self._allows(meaning)

    def named(self, meaning: Plain, request_id: str | None, offset: int | None) -> Plain:
        """See `connection.FastPath`."""
        asked = meaning.asked if offset is None else meaning.asked._replace(offset=offset)
        return meaning._replace(asked=asked, request_id=meaning.request_id if request_id is None else request_id)

    def principal_of(self, meaning: Plain) -> str | None:
        """See `connection.FastPath`."""
        access = self._authenticator.known_access(meaning.headers)
        return None if access is None else access.principal

    def bytes_max(self, meaning: Plain) -> int:
        """See `connection.FastPath`."""
        return meaning.bytes_max

    def _allows(self, plain: Plain) -> bool:
        """Whether its caller is known and may do what it asks for."""
        asked, access = plain.asked, self._authenticator.known_access(plain.headers)
        return access is not None and access.allows(asked.permission, topic=asked.topic or None, group=asked.group)

    def take(self, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        """See `connection.FastPath`."""
        _, form, batches, calls, bytes_max, _, _, _ = meaning
        body_bytes = len(data) - start
        if body_bytes > bytes_max:
            return False
        if self._asks:
            if self._version != self._authenticator.version:  # some token may have been revoked
                self._version = self._authenticator.version
                self.heads.clear()
            if not self._allows(meaning):
                return False
        try:
            if form is None:
                if batches is not None:
                    self._begin_batch(meaning, batches, memoryview(data)[start:], client)
                elif calls is not None:
                    return self._begin_call(meaning, calls, data[start:], client)
                return True
            if body_bytes < COUNTED_BYTES:
                return self._take_records(meaning, form, data[start:], client)
            turn = stretches()
            if turn.is_full:
                return False
            began_s = thread_time()
            try:
                return self._take_records(meaning, form, data[start:], client)
            finally:
                turn.spent(thread_time() - began_s)
        except Exception:  # nothing was stored: the normal path meets the same error, and answers it
            return False

    # ------------------------------------------------------------------------------------------------ records

    def _take_records(self, plain: Plain, form: RecordForm, body: bytes, client: Client) -> bool:
        """Raises what refuses the request."""
        topic, partition, acks = plain.asked[:3]
        view = self._topic_of(topic)
        sent = form.sent(plain.asked, body, view)
        if sent is None:
            return False
        if isinstance(sent, Many):
            return self._begin_many(plain, sent, client)
        record, json_values, detail = sent
        chosen = self._producer.batch_partition(view, record, partition)
        if chosen is None:
            return False
        self._turn.add((topic, chosen[0], json_values, acks), record, (plain, record, detail, client), len(body))
        return True

    def _give_back(self, waiting: Sequence[_Waiting]) -> None:
        for _, _, _, client in waiting:
            self._loop.call_soon(client.reply, None)

    def _make_answers(self, all_begun: Sequence[tuple[_Batch, Begun]]) -> None:
        """While the disk works nothing else is to be done for callers who all wait for it."""
        for batch, begun in all_begun:
            if (expected := begun.expected_offset) is not None and not begun.outcome.done():
                with suppress(Exception):  # it is met again when they are answered
                    batch.answers = expected, list(self._answers_of(batch, begun, expected, Acks.FLUSHED))

    def _answers_of(self, batch: _Batch, begun: Begun, offset: int, reached: Acks) -> Iterator[bytes]:
        """One by one: a client that has its own goes on while the next is made."""
        partition, now_ms = begun.partition, begun.now_ms
        known: Plain = batch.waiting[0][0]
        template, answer = _template(known.asked, reached), _answer_of(known)
        new, text_of = tuple.__new__, self._text_of  # a NamedTuple's own constructor takes three times as long
        for own_offset, (plain, record, detail, _) in enumerate(batch.waiting, offset):
            if plain is not known:  # equal heads have one meaning
                known, template, answer = plain, _template(plain.asked, reached), _answer_of(plain)
            time_ms = record.timestamp_ms
            if time_ms is None:
                time_ms = now_ms
            receipt = new(Receipt, (partition, own_offset, time_ms, None, None, reached, False))
            yield text_of(plain, template, answer(plain.asked, record, detail, receipt))

    def _answer(self, batch: _Batch, begun: Begun) -> None:
        try:
            offset, reached = self._producer.finish(begun)
        except (Exception, asyncio.CancelledError) as error:
            for waiting in batch.waiting:
                self._failed(waiting[0], error, waiting[3], batch.started_s)
            return
        elapsed_s = perf_counter() - batch.started_s
        answers: Iterable[bytes]
        if batch.answers is not None and batch.answers[0] == offset and reached is Acks.FLUSHED:
            answers = batch.answers[1]
        else:
            answers = self._answers_of(batch, begun, offset, reached)
        known, count = batch.waiting[0][0], 0
        for (plain, _record, _detail, client), answer in zip(batch.waiting, answers, strict=True):
            if plain is not known:
                known.stats.answered(known.asked.status, elapsed_s, count)
                known, count = plain, 0
            count += 1
            try:  # as `_put`: for each of many
                client.reply(answer)
            except Exception:
                log.exception(_ANSWER_FAILED)
        known.stats.answered(known.asked.status, elapsed_s, count)

    # ------------------------------------------------------------------------------------------- many records

    def _begin_many(self, plain: Plain, many: Many, client: Client) -> bool:
        """Raises what refuses the records. They are encoded at once: those of all requests of a turn would be out of
        the processor's cache in the next one."""
        started_s = perf_counter()
        encoded = self._producer.encoded_columns(
            plain.asked.topic, many.columns, partition=plain.asked.partition, json_values=many.json_values
        )
        if encoded is None:
            return False
        self.start(self._send_many(plain, encoded, many.answer, client, started_s))
        return True

    async def _send_many(
        self,
        plain: Plain,
        encoded: EncodedColumns,
        answer: Callable[[Sequence[StoredBatch], int], bytes],
        client: Client,
        started_s: float,
    ) -> None:
        count = encoded.record_count
        try:
            stored = await self._producer.store_columns(encoded, acks=plain.asked.acks)
        except SealedQueue as error:  # it has been held; to begin again would hold it as long again
            self._refuse(plain, error, client, started_s)
        except (Exception, asyncio.CancelledError) as error:
            self._failed(plain, error, client, started_s)
        else:
            template = _template(plain.asked, min(batch.acks for batch in stored))
            self._reply(plain, template, answer(stored, count), client, perf_counter() - started_s)

    # -------------------------------------------------------------------------------------------- raw batches

    def _begin_batch(self, plain: Plain, form: BatchForm, batch: Buffer, client: Client) -> None:
        """Raises what refuses the batch."""
        started_s = perf_counter()
        topic, partition, acks = plain.asked[:3]
        if not self._begun:
            self._producer.hold_writes()
            self._loop.call_soon(self._end_batches)
        begun = self._producer.begin_batch(topic, partition, batch, acks=acks, is_numbered=False, is_short=True)
        self._begun.append((plain, form, begun, client, started_s))

    def _end_batches(self) -> None:
        all_begun, self._begun = self._begun, []
        self._producer.write_held()
        for one in all_begun:
            once_done(one[2].outcome, partial(self._answer_batch, one))

    def _answer_batch(self, begun_batch: _BegunBatch, _: asyncio.Future[list[Appended]]) -> None:
        plain, form, begun, client, started_s = begun_batch
        try:
            receipt = self._producer.finish_batch(begun)
        except (Exception, asyncio.CancelledError) as error:
            self._failed(plain, error, client, started_s)
            return
        template = _template(plain.asked, receipt.acks)
        self._reply(plain, template, form.answer(receipt), client, perf_counter() - started_s)

    # ------------------------------------------------------------------------------------------------- calls

    def _begin_call(self, plain: Plain, form: CallForm, body: bytes, client: Client) -> bool:
        """Raises what refuses the call."""
        access = self._authenticator.known_access(plain.headers)
        if access is None:
            return False
        remote = client.remote
        allowance = Allowance(self._answers, payer_of(access, remote or ""), self._answering_bytes_max)
        call = _Call(self, plain, body, access, client, allowance)
        form.begin(plain.asked, body, Caller(access, remote, allowance, client.is_there, client.lost), call)
        return True

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run what a call takes a task for."""
        task = self._loop.create_task(work)
        self._serving.add(task)  # the loop itself keeps no task
        task.add_done_callback(self._serving.discard)

    async def served(self, call: _Call, work: Coroutine[Any, Any, Text | None]) -> None:
        """Have a call answered by what comes of `work`, and its line written."""
        trail = None if call.plain.asked.action is None else self._trail
        if trail is not None and call.plain.request_id is None:  # its line names it, as its answer does
            call.plain = call.plain._replace(request_id=self._request_ids.new())
        try:
            try:
                answer = await work
            except Exception:  # the normal path meets the same error, and answers it
                answer = None
            except BaseException:  # the server stops
                if trail is not None:
                    trail.record(call.act("unknown", None))
                raise
            elapsed_s = perf_counter() - call.started_s
            if answer is not None and trail is not None:
                await trail.recorded(call.act("done", call.plain.asked.status))
        except BaseException:
            call.allowance.release()
            raise
        self.answered(call, answer, elapsed_s)

    def answered(self, call: _Call, answer: Text | None, elapsed_s: float) -> None:
        """Answer a call; None: have the normal path do it."""
        allowance, client, plain = call.allowance, call.client, call.plain
        if answer is None:
            allowance.release()
            client.reply(None)
            return
        if isinstance(answer, Whole):
            size = self._reply_whole(plain, answer, client, elapsed_s)
        else:
            size = len(answer)
            allowance.must_send = True  # it tells of something done
            allowance.hold(size)
            self._reply(plain, _template(plain.asked, None), answer, client, elapsed_s)
        if size > SMALL_BYTES:
            self.start(_released(allowance, client))
        else:
            allowance.release()

    # ------------------------------------------------------------------------------------------------ answers

    def _failed(self, plain: Plain, error: BaseException, client: Client, started_s: float) -> None:
        """Answer a request of which the append failed, or leave it to the normal path, which begins it again."""
        if is_to_be_told(error, started_s):
            self._refuse(plain, error, client, started_s)
        else:
            self._loop.call_soon(client.reply, None)

    def _refuse(self, plain: Plain, error: StoreError, client: Client, started_s: float) -> None:
        request_id = self._request_ids.new() if plain.request_id is None else plain.request_id
        refused = error_answer(error_of(error), request_id)
        assert isinstance(refused.body, bytes)
        plain.stats.answered(refused.status, perf_counter() - started_s)
        status = f"{refused.status} {refused.reason}"
        template = _unnamed(head_of(status, JSON_TYPE, refused.headers.get(hdrs.RETRY_AFTER)))
        client.reply(template % (len(refused.body), request_id.encode(), refused.body))

    def _reply(self, plain: Plain, template: bytes, body: bytes, client: Client, elapsed_s: float) -> None:
        plain.stats.answered(plain.asked.status, elapsed_s)
        self._put(client, self._text_of(plain, template, body))

    def _reply_whole(self, plain: Plain, answer: Whole, client: Client, elapsed_s: float) -> int:
        """Returns the size of the body."""
        size = sum(map(len, answer.body))
        head = _unnamed(plain.asked.head + answer.lines) % (size, self._id_of(plain), b"")
        plain.stats.answered(plain.asked.status, elapsed_s)
        buffers = (head, *answer.body)
        self._put(client, b"".join(buffers) if size <= JOINED_BYTES_MAX else buffers)
        return size

    def _id_of(self, plain: Plain) -> bytes:
        given = plain.request_id
        return self._request_ids.new_bytes() if given is None else given.encode()

    def _text_of(self, plain: Plain, template: bytes, body: bytes) -> bytes:
        """A whole answer."""
        request_id = self._id_of(plain)
        if plain.asked.is_streamed:
            return template % (request_id, len(body), body)
        return template % (len(body), request_id, body)

    @staticmethod
    def _put(client: Client, answer: bytes | Sequence[Buffer]) -> None:
        try:
            client.reply(answer)
        except Exception:  # of one connection; the others wait for their answers
            log.exception(_ANSWER_FAILED)


class _Call:
    """See `plain.Call`."""

    __slots__ = ("_path", "access", "allowance", "body", "client", "plain", "started_s")

    def __init__(
        self, path: FastPath, plain: Plain, body: bytes, access: Access, client: Client, allowance: Allowance
    ) -> None:
        self._path = path
        self.plain = plain
        self.body = body
        self.access = access
        self.client = client
        self.allowance = allowance
        self.started_s = perf_counter()

    def answer(self, text: Text | None) -> None:
        """See `plain.Call`."""
        self._path.answered(self, text, perf_counter() - self.started_s)

    def serve(self, work: Coroutine[Any, Any, Text | None]) -> None:
        """See `plain.Call`."""
        self._path.start(self._path.served(self, work))

    def act(self, outcome: Outcome, status: int | None) -> Act:
        """Its line of the trail, as `audited` makes it."""
        asked = self.plain.asked
        assert asked.action is not None
        assert self.plain.request_id is not None
        return act_of(
            asked.action, self.access, self.client.remote, self.plain.request_id,
            given=fields_of(self.body), named={"topic": asked.topic}, outcome=outcome, status=status,
        )  # fmt: skip


async def _released(allowance: Allowance, client: Client) -> None:
    """Hold what an answer takes until its client has taken it."""
    try:
        await client.taken()
    finally:
        allowance.release()


def _unnamed(head: bytes) -> bytes:
    """Answers that begin so, but for id and body."""
    return _UNNAMED % (head, rfc822_formatted_time().encode())


def _answer_of(plain: Plain) -> Callable[[Asked, ProduceRecord, Any, Receipt], bytes]:
    assert plain.records is not None
    return plain.records.answer


def _template(asked: Asked, reached: Acks | None) -> bytes:
    """The answers to equal heads, but for id and body. `reached` None: nothing was sent."""
    return _template_at(rfc822_formatted_time(), asked.head, asked.is_streamed, reached)


@lru_cache(maxsize=64)  # of this second, and some before
def _template_at(time: str, head: bytes, is_streamed: bool, reached: Acks | None) -> bytes:
    date = time.encode()
    if is_streamed:
        return _STREAMED % (head, date)
    if reached is None:
        return _UNNAMED % (head, date)
    return _NAMED % (head, name_of_acks(reached).encode(), date)
