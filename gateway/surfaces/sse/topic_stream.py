"""GET /mq/v1/topics/{topic}/sse: records as they come, as Server-Sent Events, or as NDJSON for programs.

    : connected epoch=16                          id: orders@16:0=101;orders:1=88
    retry: 2000                                   event: message
    id: orders@16:0=100;orders:1=88               data: {"topic":"orders","partition":0,"offset":100,...}

Every id is a cursor: the next offset of every partition of the stream. A browser sends the last one back when it
reconnects (Last-Event-ID), so nothing is lost and nothing comes twice; comments that keep the connection alive carry it
too, so what a filter passed over is not looked at again.

With `group=` it is another kind of stream: group_stream.py.

    caught_up   once, when every partition had nothing more for the first time
    error       the stream cannot go on: the topic is gone, or retention has overtaken the reader; then it ends
    goaway      the server is about to stop: connect again
    (comment)   every HEARTBEAT_MS without an event

Invariants
    E1  records of a partition come in the order of their offsets, each once, and with each the cursor behind it
    E2  one piece of records at a time is in memory, however slowly the client reads; a client that takes nothing for
        the write timeout is cut off
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise

import orjson
from aiohttp import hdrs, web

from gateway.api.errors import error_of
from gateway.api.read import AtTime, OffsetSpec, out_of_range
from gateway.api.shapes.base import text_time_ms
from gateway.api.shapes.queries import STREAM_CREDIT_DEFAULT, FollowQuery
from gateway.api.tasks import when_set
from gateway.auth.access import Access, Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.codec.cursors import parse_cursor, write_cursor
from gateway.codec.filters import TagFilter, parse_filter
from gateway.codec.records import Format, split_lines
from gateway.errors import EPOCH_CHANGED, LIMIT_ILLEGAL, TOO_MANY, RequestError, invalid
from gateway.groups.machines.copies import check_group_name
from gateway.groups.machines.progress import Start, StartTime
from gateway.groups.machines.subscription import TOPICS_MAX
from gateway.groups.protocol import Receive, StartSpec
from gateway.routing.base import UnknownPartition
from gateway.routing.patience import AGAIN_S
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import LINES_TYPE, LINES_TYPES, format_named, prefers
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.http.rights import ended, left_s
from gateway.surfaces.http.streaming import PIECE_BYTES, StreamedAnswer, records_at_once, rendered_pieces
from gateway.surfaces.sse.group_stream import GroupStream
from store.limits import KiB, MiB
from store.turns import others_turn
from store.types import ReadStatus
from store.waits import is_set_within

RECORDS_AT_ONCE = 1024
"""Written in one call: with as many headers as they may have, some 20 ms."""

SSE_TYPE = "text/event-stream"
LAST_EVENT_ID = "Last-Event-ID"

_OF_GROUPS = ("ack", "credit", "invisible_ms")
_NOT_OF_GROUPS = ("partitions", "format", "last_event_id", "reset")

CURSOR_BYTES_MAX = 6 * KiB
"""Of one id. It comes with every event, and comes back in one request header."""

HEARTBEAT_MS = 15_000
RETRY_MS = 2_000
"""How long a browser waits before it connects again."""

_OFFSET_DIGITS = 12  # room for offsets to grow in the bound on cursors
_ANSWER_BYTES = 1 * MiB  # of what one read becomes


class FollowedPartition:
    """How far one partition has been sent."""

    __slots__ = ("call_off", "offset", "partition", "topic", "topic_id")

    def __init__(self, topic: str, topic_id: int, partition: int, offset: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset = offset
        self.call_off: Callable[[], None] | None = None  # of the end it waits at


class EventForm:
    """Server-Sent Events (WHATWG HTML, 9.2)."""

    content_type = SSE_TYPE

    def opening(self, cursor: str, epochs: Mapping[str, str]) -> bytes:
        """What a stream begins with."""
        named = ",".join(epochs.values())
        return f": connected epoch={named}\nretry: {RETRY_MS}\nid: {cursor}\n\n".encode()

    def record(self, data: bytes, cursor: bytes) -> bytes:
        """One record, which is JSON, and the cursor behind it."""
        return b"id: %s\nevent: message\ndata: %s\n\n" % (cursor, data)

    def event(self, name: str, fields: Mapping[str, object], cursor: str) -> bytes:
        """What is no record."""
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (cursor.encode(), name.encode(), orjson.dumps(fields))

    def heartbeat(self, cursor: str) -> bytes:
        """That the stream is alive."""
        return f": hb\nid: {cursor}\n\n".encode()


class LineForm:
    """NDJSON: records with their cursor; what is no record has `event`."""

    content_type = LINES_TYPE

    def opening(self, cursor: str, epochs: Mapping[str, str]) -> bytes:
        """What a stream begins with."""
        return self.event("connected", {"epochs": epochs}, cursor)

    def record(self, data: bytes, cursor: bytes) -> bytes:
        """One record, which is JSON, and the cursor behind it."""
        return b'%s,"cursor":"%s"}\n' % (data[:-1], cursor)

    def event(self, name: str, fields: Mapping[str, object], cursor: str) -> bytes:
        """What is no record."""
        return orjson.dumps({"event": name, **fields, "cursor": cursor}) + b"\n"

    def heartbeat(self, cursor: str) -> bytes:
        """That the stream is alive."""
        return self.event("heartbeat", {}, cursor)


async def follow_topic(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Stream records until the client goes, its rights end, or the server drains.

    With `group` and `ack` the stream is one of the group's consumers: records come on lease, each with a receipt.
    """
    query = read_query(FollowQuery, request, gateway)
    wants_lines = prefers(request.headers.get(hdrs.ACCEPT, ""), SSE_TYPE, *LINES_TYPES) not in (SSE_TYPE, None)
    form: EventForm | LineForm = LineForm() if wants_lines else EventForm()
    fmt = None if query.format is None else format_named(query.format)
    tag_filter = parse_filter(query.filter)
    group = query.group
    if group is None:
        if any(getattr(query, name) is not None for name in _OF_GROUPS):
            raise invalid(f"{', '.join(_OF_GROUPS)}: only with a group")
        all_followed = await _all_followed(gateway, request, query)
    else:
        asked = _asked_for_group(gateway, request, query, group, tag_filter)
        credit = STREAM_CREDIT_DEFAULT if query.credit is None else query.credit
    answer = StreamedAnswer(
        gateway,
        request,
        content_type=form.content_type,
        headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"},
    )
    if request.method == hdrs.METH_HEAD:
        return answer.response
    stats = gateway.stats
    if stats.stream_count >= gateway.limits.streams_max:
        raise RequestError(TOO_MANY, "Too many streams are open.", retriable=True, retry_after_ms=5000)
    stats.stream_count += 1
    try:
        if group is not None:
            return await GroupStream(
                gateway,
                request,
                access_of(request),
                answer,
                group=group,
                asked=asked,
                credit=credit,
                acks_itself=query.ack == "auto",
                as_lines=wants_lines,
                heartbeat_ms=HEARTBEAT_MS,
            ).run()
        return await Stream(gateway, all_followed, form, fmt, tag_filter, access_of(request), answer).run()
    finally:
        stats.stream_count -= 1


def _asked_for_group(
    gateway: Gateway, request: web.Request, query: FollowQuery, group: str, tag_filter: TagFilter | None
) -> Receive:
    """What a stream of a group receives, again and again. Raises RequestError, GroupError, UnknownQueue."""
    check_group_name(group)
    if query.ack is None:
        raise invalid('ack: say "manual" (each record is settled by its receipt) or "auto" (when it is sent)')
    for name in _NOT_OF_GROUPS:
        if getattr(query, name) is not None:
            raise invalid(f"{name}: not with a group, which keeps its own offsets and sends the native form")
    names = _topics(request, query.topics)
    for name in names:
        access_of(request).check(Permission.RECEIVE, topic=name, group=group)
        gateway.routes_table.topic(name)
    begin = query.from_
    if begin in (None, "earliest", "latest"):
        start: StartSpec = Start.LAST if begin == "latest" else Start.FIRST
    else:
        start = StartTime(text_time_ms("from", begin))
    return Receive(
        topics=tuple(names),
        invisible_ms=query.invisible_ms,
        tags=None if tag_filter is None else tag_filter.tags,
        start=start,
    )


class Stream:
    """One open stream. Used once, by `run`."""

    def __init__(
        self,
        gateway: Gateway,
        all_followed: list[FollowedPartition],
        form: EventForm | LineForm,
        fmt: Format | None,
        tag_filter: TagFilter | None,
        access: Access,
        answer: StreamedAnswer,
    ) -> None:
        self._gateway = gateway
        self._all_followed = all_followed
        self._form = form
        self._fmt = fmt
        self._filter = tag_filter
        self._access = access
        self._answer = answer
        self._epochs = {followed.topic: str(followed.topic_id) for followed in all_followed}
        self._ready = deque(all_followed)  # may have records
        self._behind = set(all_followed)
        self._changed = asyncio.Event()
        self._ends = False  # the reader's rights have ended

    @property
    def cursor(self) -> str:
        """The next offset of every partition."""
        return write_cursor(((one.topic, one.partition, one.offset) for one in self._all_followed), self._epochs)

    async def run(self) -> web.StreamResponse:
        """Stream to the end, or until the client is gone."""
        loop = asyncio.get_running_loop()
        changed = self._changed.set
        unwatch = self._access.watch(self._end_rights)
        expiry = self._expiry(loop)
        try:
            with when_set(self._gateway.draining, changed), self._answer.when_gone(changed):
                await self._answer.write(self._form.opening(self.cursor, self._epochs))
                await self._follow()
        except ConnectionError:
            return self._answer.gone()
        except Exception as error:
            refusal = error_of(error)
            fields = {"error_code": refusal.error_code, "message": refusal.message, "details": refusal.details}
            await self._answer.write(self._form.event("error", fields, self.cursor))
        finally:
            unwatch()
            if expiry is not None:
                expiry.cancel()
            for followed in self._all_followed:
                if followed.call_off is not None:
                    followed.call_off()
        return await self._answer.end()

    async def _follow(self) -> None:
        while not self._gateway.draining.is_set():
            self._answer.check_there()
            if self._ends or self._access.is_over:
                raise ended()
            if self._ready:
                followed = self._ready.popleft()
                try:
                    has_more = await self._advance(followed)
                except BrokerUnreachable:  # its node restarts: the others go on meanwhile
                    self._answer.allowance.release()
                    later = asyncio.get_running_loop().call_later(AGAIN_S, self._wake, followed)
                    followed.call_off = later.cancel
                    continue
                if has_more:
                    self._ready.append(followed)  # its turn comes again after the others'
                else:
                    await self._wait_at_end(followed)
                continue
            self._changed.clear()
            if not await is_set_within(self._changed, HEARTBEAT_MS / 1000):
                await self._answer.write(self._form.heartbeat(self.cursor))
        fields = {"reason": "shutdown", "reconnect_after_ms": RETRY_MS}
        await self._answer.write(self._form.event("goaway", fields, self.cursor))

    async def _advance(self, followed: FollowedPartition) -> bool:
        """Send what a partition has, one read's worth; whether there may be more."""
        room_bytes = await self._answer.allowance.begin(_ANSWER_BYTES)
        fetched = await self._gateway.consumer.fetch(
            followed.topic,
            followed.partition,
            followed.offset,
            max_bytes=room_bytes // RENDERED_FACTOR,
            tag_hashes=None if self._filter is None else self._filter.hashes,
        )
        self._access.check(Permission.RECEIVE, topic=followed.topic)  # rules may have changed since the stream began
        if self._gateway.routes_table.topic(followed.topic).topic_id != followed.topic_id:
            raise RequestError(EPOCH_CHANGED, f"Topic {followed.topic} was deleted and made again.")
        if fetched.status in (ReadStatus.TOO_SMALL, ReadStatus.TOO_LARGE):
            raise out_of_range(
                followed.topic, followed.partition, followed.offset, (fetched.min_offset, fetched.max_offset)
            )
        is_large = sum(entry.size for entry in fetched.entries) > SMALL_BYTES
        if is_large:
            await others_turn()  # dozens of streams read at once
        texts: list[bytes] = []
        offsets: list[int] = []
        size, high = 0, followed.offset
        async for records, stop in rendered_pieces(
            followed.topic,
            followed.partition,
            fetched.entries,
            self._fmt,
            start=max(followed.offset, fetched.entries[0].base_offset) if fetched.entries else followed.offset,
            stop=fetched.next_offset,
            topic_id=followed.topic_id if self._fmt is None else None,
            tag_filter=self._filter,
            records_max=min(records_at_once(fetched.entries, room_bytes), RECORDS_AT_ONCE),
        ):
            texts += split_lines(records)
            offsets += [record["offset"] for record in records]  # type: ignore[misc]
            size += sum(map(len, texts[len(texts) - len(records) :]))
            high = stop
            if size >= room_bytes:
                break
            if is_large:
                await others_turn()
        while size > room_bytes and len(texts) > 1:
            size -= len(texts.pop())
            high = offsets.pop()
        if not fetched.entries or high >= fetched.entries[-1].next_offset:
            high = max(high, fetched.next_offset)
        fetched.entries.clear()  # only what is written waits for the client
        if not texts:
            self._answer.allowance.release()
        step = max(1, PIECE_BYTES // CURSOR_BYTES_MAX) if len(self._all_followed) > 1 else len(texts)
        while texts:
            events = self._written(followed, texts, offsets, step)
            await self._answer.write(events)
            self._gateway.stats.fetched_byte_count += len(events)
        self._gateway.stats.fetched_record_count += high - followed.offset
        followed.offset = max(followed.offset, high)
        return followed.offset < fetched.max_offset

    def _written(self, followed: FollowedPartition, texts: list[bytes], offsets: list[int], count: int) -> bytes:
        """The first records of one partition as events, each with the cursor behind it. They are in no list then."""
        at = followed.offset
        followed.offset = -1  # a mark to cut the cursor at; no offset is negative
        before, after = self.cursor.encode().split(b"=-1")
        followed.offset = at
        record = self._form.record
        data = b"".join(
            [
                record(text, b"%s=%d%s" % (before, offset + 1, after))
                for text, offset in zip(texts[:count], offsets[:count], strict=True)
            ]
        )
        del texts[:count], offsets[:count]
        return data

    async def _wait_at_end(self, followed: FollowedPartition) -> None:
        if followed in self._behind:
            self._behind.remove(followed)
            if not self._behind:
                await self._answer.write(self._form.event("caught_up", {}, self.cursor))
        followed.call_off = self._gateway.consumer.watch(
            followed.topic, followed.partition, followed.offset, lambda: self._wake(followed)
        )

    def _wake(self, followed: FollowedPartition) -> None:
        followed.call_off = None
        self._ready.append(followed)
        self._changed.set()

    def _end_rights(self) -> None:
        self._ends = True
        self._changed.set()

    def _expiry(self, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle | None:
        seconds = left_s(self._gateway, self._access)
        return None if seconds is None else loop.call_later(seconds, self._end_rights)


async def _all_followed(gateway: Gateway, request: web.Request, query: FollowQuery) -> list[FollowedPartition]:
    """Where each partition of the stream begins: at the cursor that the client brings, else where it says."""
    last_event_id = request.headers.get(LAST_EVENT_ID) or query.last_event_id
    cursor = None if last_event_id is None else parse_cursor(last_event_id)
    names = _topics(request, query.topics)
    numbers = _partitions(query.partitions)
    if numbers is not None and len(names) > 1:
        raise invalid("partitions: cannot be chosen for several topics; open a stream for each")
    spec = _from(query.from_)
    all_followed: list[FollowedPartition] = []
    for name in names:
        view = gateway.routes_table.topic(name)
        if cursor is not None:
            await gateway.consumer.check_epoch(view, cursor.epochs.get(name))
        for number in range(view.partitions) if numbers is None else numbers:
            if number >= view.partitions:
                raise UnknownPartition(f"topic={name} has partitions 0 to {view.partitions - 1}, not {number}")
            known = None if cursor is None else cursor.offsets.get(name, {}).get(number)
            # A partition that the cursor does not know was added since it was written: nothing of it was seen.
            begin = known if known is not None else "earliest" if cursor is not None else spec
            offset = await gateway.consumer.start_offset(name, number, begin, query.reset)
            all_followed.append(FollowedPartition(name, view.topic_id, number, offset))
    check_cursor_size((one.topic, one.topic_id, one.partition) for one in all_followed)
    return all_followed


def check_cursor_size(followed: Iterable[tuple[str, int, int]]) -> None:
    """Raises RequestError for topics, with their ids, and partitions whose cursor would be too long, those of one topic
    together."""
    all_followed = list(followed)
    size = sum(len(topic) + len(str(partition)) + _OFFSET_DIGITS + 3 for topic, _, partition in all_followed)
    size += sum(len(str(after[1])) + 1 for before, after in pairwise(all_followed) if before[0] != after[0])
    if size > CURSOR_BYTES_MAX:
        raise RequestError(
            LIMIT_ILLEGAL,
            f"{len(all_followed)} partitions are too many for one stream: its cursor may have {CURSOR_BYTES_MAX} "
            "bytes; choose some of them with partitions=",
        )


def _topics(request: web.Request, more: str | None) -> list[str]:
    """The topic of the path and those of `topics=`, each checked against the caller's rights."""
    names = [request.match_info["topic"]]
    for name in (more or "").split(","):
        if name and name not in names:
            access_of(request).check(Permission.RECEIVE, topic=name)
            names.append(name)
    if len(names) > TOPICS_MAX:
        raise RequestError(LIMIT_ILLEGAL, f"topics: at most {TOPICS_MAX} in one stream")
    return names


def _partitions(text: str | None) -> list[int] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.isascii() and number.isdigit() and len(number) <= 9 for number in numbers):
        raise invalid("partitions: must be numbers with commas between them")
    return sorted(set(map(int, numbers)))


def _from(text: str | None) -> OffsetSpec:
    if text is None or text in ("latest", "earliest"):
        return text or "latest"
    return AtTime(text_time_ms("from", text))
