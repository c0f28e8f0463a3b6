"""GET /mq/v1/topics/{topic}/queues/{queue}/sse: records of a light queue as they come. As a stream of a topic
(topic_stream.py), with the queue's own offsets in its cursors; with `group=` it begins where the group is.

Nothing is kept for the queue but what wakes this stream.
"""

from __future__ import annotations

import asyncio

from aiohttp import hdrs, web

from gateway.api.errors import error_of
from gateway.api.light import LightReader
from gateway.api.shapes.queries import FollowLightQuery
from gateway.api.tasks import when_set
from gateway.auth.access import Access, Permission
from gateway.codec.cursors import write_cursor
from gateway.codec.records import parse_light_name, split_lines
from gateway.errors import EPOCH_CHANGED, TOO_MANY, RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.answer_memory import RENDERED_FACTOR, SMALL_BYTES
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.light import check_group, light_offsets
from gateway.surfaces.http.media import LINES_TYPES, prefers
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.http.rights import ended, left_s
from gateway.surfaces.http.streaming import StreamedAnswer
from gateway.surfaces.sse.topic_stream import (
    HEARTBEAT_MS,
    LAST_EVENT_ID,
    RETRY_MS,
    SSE_TYPE,
    EventForm,
    LineForm,
    check_cursor_size,
)
from store.turns import others_turn
from store.waits import is_set_within

RECORDS_AT_ONCE = 100
"""Of one read."""


async def follow_queue(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Stream the records of a light queue until the client goes, its rights end, or the server drains."""
    query = read_query(FollowLightQuery, request, gateway)
    view = gateway.routes_table.topic(request.match_info["topic"])
    name = parse_light_name(request.match_info["queue"])
    check_group(request, view, name, query.group)
    wants_lines = prefers(request.headers.get(hdrs.ACCEPT, ""), SSE_TYPE, *LINES_TYPES) not in (SSE_TYPE, None)
    cursor = request.headers.get(LAST_EVENT_ID) or query.last_event_id
    is_latest = query.from_ != "earliest"  # as a stream of a topic
    partitions = range(view.partitions)
    offsets = await light_offsets(
        gateway, view, name, partitions, cursor=cursor, group=query.group, is_latest=is_latest
    )
    check_cursor_size((view.name, view.topic_id, partition) for partition in offsets)
    form: EventForm | LineForm = LineForm() if wants_lines else EventForm()
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
        return await LightStream(gateway, view, name, offsets, form, access_of(request), answer).run()
    finally:
        stats.stream_count -= 1


class LightStream:
    """One open stream. Used once, by `run`."""

    def __init__(
        self,
        gateway: Gateway,
        view: TopicView,
        name: bytes,
        offsets: dict[int, int],
        form: EventForm | LineForm,
        access: Access,
        answer: StreamedAnswer,
    ) -> None:
        self._gateway = gateway
        self._view = view
        self._name = name
        self._offsets = offsets
        self._form = form
        self._access = access
        self._answer = answer
        self._reader = LightReader(gateway.routes_table)
        self._changed = asyncio.Event()
        self._changed.set()
        self._ends = False  # the reader's rights have ended

    @property
    def cursor(self) -> str:
        """The next offset of every partition."""
        view = self._view
        triples = ((view.name, partition, offset) for partition, offset in self._offsets.items())
        return write_cursor(triples, {view.name: str(view.topic_id)})

    async def run(self) -> web.StreamResponse:
        """Stream to the end, or until the client is gone."""
        loop = asyncio.get_running_loop()
        view, changed = self._view, self._changed.set
        unwatch = self._access.watch(self._end_rights)
        seconds = left_s(self._gateway, self._access)
        expiry = None if seconds is None else loop.call_later(seconds, self._end_rights)
        try:
            with when_set(self._gateway.draining, changed), self._answer.when_gone(changed):
                await self._answer.write(self._form.opening(self.cursor, {view.name: str(view.topic_id)}))
                with self._reader.watching(view.name, self._name, list(self._offsets), changed):
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
        return await self._answer.end()

    async def _follow(self) -> None:
        is_behind = True
        while not self._gateway.draining.is_set():
            self._answer.check_there()
            if self._ends or self._access.is_over:
                raise ended()
            if self._changed.is_set():
                self._changed.clear()
                while await self._advance() and not self._gateway.draining.is_set():
                    pass
                if is_behind:
                    is_behind = False
                    await self._answer.write(self._form.event("caught_up", {}, self.cursor))
            elif not await is_set_within(self._changed, HEARTBEAT_MS / 1000):
                await self._answer.write(self._form.heartbeat(self.cursor))
        fields = {"reason": "shutdown", "reconnect_after_ms": RETRY_MS}
        await self._answer.write(self._form.event("goaway", fields, self.cursor))

    async def _advance(self) -> bool:
        """Send what there is, one read's worth; whether there may be more."""
        view, name = self._view, self._name
        room_bytes = await self._answer.allowance.begin(SMALL_BYTES)
        max_bytes = max(1, room_bytes // RENDERED_FACTOR)
        found = await self._reader.read(
            view.name, name, self._offsets, max_records=RECORDS_AT_ONCE, max_bytes=max_bytes
        )
        shown = await self._gateway.light_rendering.of(view.name, name, found.records, topic_id=view.topic_id)
        self._access.check(
            Permission.RECEIVE, topic=f"{view.name}/{name.decode()}"
        )  # rules may have changed since the stream began
        if self._gateway.routes_table.topic(view.name).topic_id != view.topic_id:
            raise RequestError(EPOCH_CHANGED, f"Topic {view.name} was deleted and made again.")
        if not found.records:
            self._answer.allowance.release()
            return False
        events = []
        for (partition, record), text in zip(found.records, split_lines(shown), strict=True):
            self._offsets[partition] = record.offset + 1
            events.append(self._form.record(text, self.cursor.encode()))
        await self._answer.write(b"".join(events))
        self._gateway.stats.fetched_record_count += len(events)
        self._gateway.stats.fetched_byte_count += sum(map(len, events))
        # What was read last comes last, so that a busy partition does not keep the others waiting.
        first = found.records[-1][0]
        self._offsets = {**{one: at for one, at in self._offsets.items() if one != first}, first: self._offsets[first]}
        if len(events) == RECORDS_AT_ONCE:
            await others_turn()  # the kernel may take all there is, and nothing else would wait
        return True

    def _end_rights(self) -> None:
        self._ends = True
        self._changed.set()
