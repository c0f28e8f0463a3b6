"""Sending records by the stream: documents in, one receipt each out, in order, on one connection of any length.

    body ──> documents ──> groups ──(GROUPS_IN_FLIGHT at most)──> producer ──> receipts ──> answer

What has arrived is one group, sent as one request would be, so a slow sender gets each receipt at once and a fast one
pays per group. The next groups are parsed while the disk is busy with the ones before.

Invariants
    P1  receipts come in the order of the documents, one each, whatever became of it: one bad record is one bad receipt
    P2  groups go to the store in order, so records of one partition keep theirs
    P3  memory is bounded: when the client does not read its receipts, its body is not read either
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import orjson
from aiohttp import web

from gateway.api.errors import error_of
from gateway.api.producer import KeysTaken, Receipt, RequestIdentity
from gateway.api.tasks import task_group
from gateway.api.turns import in_turns
from gateway.auth.access import Access, Permission
from gateway.codec.documents import TOO_DEAR, Document, Splitter
from gateway.codec.json_steps import STEP_BYTES, check_cost
from gateway.codec.native import Parsed
from gateway.codec.records import ProduceRecord, render_lines
from gateway.errors import RequestError, draining
from gateway.routing.base import UnknownPartition
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.rights import ended, left_s
from gateway.surfaces.http.streaming import StreamedAnswer
from gateway.surfaces.http.tracing import Headers, traced
from store.types import Acks

log = logging.getLogger(__name__)

GROUPS_IN_FLIGHT = 4
GROUP_RECORDS_MAX = 2000
"""Records sent together. Bounds how long one stream keeps the event loop (some 10 ms)."""

Outcome = Receipt | RequestError


class Dialect(Protocol):
    """How one surface writes records and receipts."""

    async def parsed(self, documents: Sequence[Document]) -> Parsed:
        """The records of documents, or for each the error it is answered with. Asked for one group after the other."""
        ...

    def receipt(self, request_index: int, record: ProduceRecord, receipt: Receipt) -> dict[str, object]:
        """The line for a stored record."""
        ...

    def refusal(self, request_index: int, error: RequestError) -> dict[str, object]:
        """The line for a refused one."""
        ...

    def last_words(self, error: RequestError, request_index: int) -> dict[str, object]:
        """Why the stream ends before its body did; `request_index` documents have their receipts."""
        ...


class _Group:
    """Documents that are sent together: the index of the first, and the task that sends them."""

    __slots__ = ("parsed", "request_index", "sending")

    def __init__(self, request_index: int, parsed: Parsed, sending: asyncio.Task[list[Outcome]]) -> None:
        self.request_index = request_index
        self.parsed = parsed
        self.sending = sending


class ProduceStream:
    """One request that sends records until its body ends. Used once, by `run`."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        topic: str,
        body: AsyncIterator[bytes],
        splitter: Splitter,
        dialect: Dialect,
        answer: StreamedAnswer,
        access: Access,
        acks: Acks | None = None,
        trace: Headers | None = None,
        identity: RequestIdentity | None = None,
        errors_only: bool = False,
    ) -> None:
        """With an `identity` the whole request can be sent again: what is stored already is answered as it was.
        `errors_only`: good receipts are counted, not written, and a last line says how many there were."""
        self._gateway = gateway
        self._topic = topic
        self._body = body
        self._splitter = splitter
        self._dialect = dialect
        self._answer = answer
        answer.allowance.must_send = True  # receipts of what is stored
        self._access = access
        self._acks = acks
        self._trace = trace or []
        self._identity = identity
        self._errors_only = errors_only
        self._groups: asyncio.Queue[_Group | None] = asyncio.Queue(GROUPS_IN_FLIGHT)
        self._next_index = 0
        self._error_count = 0
        self._ending: RequestError | None = None

    async def run(self) -> web.StreamResponse:
        """Until the body ends, the client is gone, its rights end, or the server drains.

        Raises RequestError when nothing was answered yet.
        """
        try:
            async with task_group() as tasks:
                reading = tasks.create_task(self._read(tasks))
                watching = tasks.create_task(self._watch(reading))
                done_count = await self._write()
                watching.cancel()
        except BaseExceptionGroup as failures:
            if isinstance(failures.exceptions[0], ConnectionError):
                return self._answer.gone()
            raise failures.exceptions[0] from None  # the first is the cause, the rest was cancelled
        if self._ending is not None:
            if not self._answer.has_begun:
                ending, self._ending = self._ending, None
                try:
                    raise ending
                finally:
                    del ending  # see `_read`
            last_words = self._dialect.last_words(self._ending, done_count)
            await self._answer.write(orjson.dumps(last_words) + b"\n")
        elif self._errors_only:
            summary = {"count": done_count, "error_count": self._error_count}
            await self._answer.write(orjson.dumps(summary) + b"\n")
        return await self._answer.end()

    async def _watch(self, reading: asyncio.Task[None]) -> None:
        gateway, access = self._gateway, self._access
        over = asyncio.Event()
        unwatch = access.watch(over.set)
        waiting = [asyncio.ensure_future(gateway.draining.wait()), asyncio.ensure_future(over.wait())]
        try:
            await asyncio.wait(waiting, timeout=left_s(gateway, access), return_when=asyncio.FIRST_COMPLETED)
        finally:
            unwatch()
            for one in waiting:
                one.cancel()
        self._ending = draining() if gateway.draining.is_set() else ended()
        reading.cancel()

    async def _read(self, tasks: asyncio.TaskGroup) -> None:
        try:
            async for piece in self._body:
                await self._dispatch(tasks, await self._documents(piece))
                if self._splitter.is_broken:
                    self._ending = RequestError(400, "The stream ends here: what follows cannot be told apart.")
                    break
            else:
                await self._dispatch(tasks, self._splitter.finish())
        except RequestError as error:
            # Tracebacks have this frame, and so this stream: what it holds would wait for the collector.
            error.__context__ = None
            self._ending = error.with_traceback(None)
        except asyncio.CancelledError:
            if self._ending is None:
                raise
        await self._groups.put(None)

    async def _documents(self, piece: bytes) -> list[Document]:
        """The documents that end in a piece of the body."""
        turn_bytes = self._splitter.turn_bytes
        if len(piece) <= turn_bytes:
            return self._splitter.feed(piece)
        documents: list[Document] = []
        for start in range(0, len(piece), turn_bytes):
            documents += self._splitter.feed(piece[start : start + turn_bytes])
            await asyncio.sleep(0)
        return documents

    async def _dispatch(self, tasks: asyncio.TaskGroup, documents: Sequence[Document]) -> None:
        """Begin to send documents in groups; wait while too many are under way."""
        for part in _parts(documents):
            self._access.check(Permission.SEND, topic=self._topic)  # rules may have changed since the stream began
            parsed = await self._dialect.parsed([await _readable(part[0])] if len(part) == 1 else part)
            identity = None if self._identity is None else self._identity.at(self._next_index)
            group = _Group(self._next_index, parsed, tasks.create_task(self._send(parsed, identity)))
            self._next_index += len(parsed.records)
            await self._groups.put(group)
            await asyncio.sleep(0)  # the group goes to the store before the next one is parsed (P2)

    async def _send(self, parsed: Parsed, identity: RequestIdentity | None) -> list[Outcome]:
        sending = Sending(self._gateway, self._topic, parsed.json_values, self._acks, identity)
        return await send_each(sending, parsed, trace=self._trace)

    async def _write(self) -> int:
        """Answer group after group; return how many documents there were."""
        count = 0
        while (group := await self._groups.get()) is not None:
            lines: list[dict[str, object]] = []
            outcomes = await group.sending
            for request_index, (record, outcome) in enumerate(
                zip(group.parsed.records, outcomes, strict=True), group.request_index
            ):
                if isinstance(outcome, RequestError):
                    self._error_count += 1
                    lines.append(self._dialect.refusal(request_index, outcome))
                elif not self._errors_only:
                    assert not isinstance(record, RequestError)
                    lines.append(self._dialect.receipt(request_index, record, outcome))
            count = group.request_index + len(outcomes)
            if lines:
                await self._answer.write(render_lines(lines))
        return count


def _parts(documents: Sequence[Document]) -> Iterator[Sequence[Document]]:
    """Documents in groups of at most GROUP_RECORDS_MAX and STEP_BYTES; one alone may have more."""
    first = size = 0
    for index, document in enumerate(documents):
        size += len(document) if isinstance(document, bytes) else 0
        if index > first and (size > STEP_BYTES or index - first == GROUP_RECORDS_MAX):
            yield documents[first:index]
            first, size = index, len(document) if isinstance(document, bytes) else 0
    if first < len(documents):
        yield documents[first:]


async def _readable(document: Document) -> Document:
    """The document, if one turn of the event loop has time for it."""
    if isinstance(document, bytes) and len(document) > STEP_BYTES:
        try:
            await in_turns(check_cost(document, 0, len(document), "document"))
        except RequestError:
            return TOO_DEAR
    return document


class Sending(NamedTuple):
    """What all records of a group have in common. `identity` is that of its first record."""

    gateway: Gateway
    topic: str
    json_values: bool
    acks: Acks | None = None
    identity: RequestIdentity | None = None
    partition: int | None = None
    selector: str | None = None


async def send_each(sending: Sending, parsed: Parsed, *, trace: Headers | None = None) -> list[Outcome]:
    """Send the records of a group; what became of each. Never raises for a record."""
    outcomes: list[Outcome | None] = [one if isinstance(one, RequestError) else None for one in parsed.records]
    now: list[tuple[int, ProduceRecord]] = []
    later: list[tuple[int, ProduceRecord]] = []
    for request_index, one in enumerate(parsed.records):
        if not isinstance(one, RequestError):
            # Apart, because a timer that is full refuses its own after the others are stored.
            is_delayed = one.delay_ms is not None or one.deliver_at_ms is not None
            (later if is_delayed else now).append((request_index, traced(one, trace) if trace else one))
    for indexed in (now, later):
        await _send_runs(sending, indexed, outcomes)
    return [outcome for outcome in outcomes if outcome is not None]


def _runs(indexed: Sequence[tuple[int, ProduceRecord]]) -> list[Sequence[tuple[int, ProduceRecord]]]:
    """Records whose indexes follow each other: an identity counts indexes from that of its first record."""
    runs: list[Sequence[tuple[int, ProduceRecord]]] = []
    first = 0
    for index in range(1, len(indexed) + 1):
        if index == len(indexed) or indexed[index][0] != indexed[index - 1][0] + 1:
            runs.append(indexed[first:index])
            first = index
    return runs


async def _send_runs(
    sending: Sending, indexed: Sequence[tuple[int, ProduceRecord]], outcomes: list[Outcome | None]
) -> None:
    """Send records in as few goes as their identity allows, in order."""
    for run in [indexed] if sending.identity is None else _runs(indexed):
        if run:
            await _send(sending, run, outcomes)


async def _send(sending: Sending, indexed: Sequence[tuple[int, ProduceRecord]], outcomes: list[Outcome | None]) -> None:
    """Send records together; when some of them spoil the rest, the others without them."""
    identity = sending.identity
    producer = sending.gateway.producer
    records = [record for _, record in indexed]
    try:
        receipts = await producer.produce(
            sending.topic,
            records,
            partition=sending.partition,
            json_values=sending.json_values,
            acks=sending.acks,
            selector=sending.selector,
            identity=None if identity is None else identity.at(identity.first_index + indexed[0][0]),
        )
    except Exception as error:
        refusal = error_of(error)
        if refusal.hides_cause:
            log.error("streamed send failed topic=%s", sending.topic, exc_info=error)
        refused: Mapping[int, RequestError] = {}
        if isinstance(error, KeysTaken):
            refused = error.refusals
        elif isinstance(error, RequestError | UnknownPartition):
            refused = producer.refusals(sending.topic, records)
        for index, (request_index, _) in enumerate(indexed):
            if index in refused or not refused:
                outcomes[request_index] = refused.get(index, refusal)
        rest = [one for index, one in enumerate(indexed) if index not in refused] if refused else []
        await _send_runs(sending, rest, outcomes)
        return
    for (request_index, _), receipt in zip(indexed, receipts, strict=True):
        outcomes[request_index] = receipt
