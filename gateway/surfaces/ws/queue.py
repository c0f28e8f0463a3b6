"""Queue mode: records of a group on lease to this subscription, each to be settled by its receipt.

The subscription holds what it was handed and has not settled (`Leases`), with the number of the frame it went in. So a
resumed session knows what the client has not seen (it is given back, its attempt not counted), and an end knows what
to release. With automatic credit a message costs credit until it is settled or its lease is over.

Invariants
    Q1  every lease is held, settled, given back or over; none is forgotten, whichever task is cancelled
    Q2  messages held <= credit granted, always (see `credit.py`)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NoReturn

import orjson

from gateway.api.acks import begin_ack
from gateway.api.lease import AllLeases, Leases, settle
from gateway.api.render import Forms, Template, filled_in, queue_as_json
from gateway.api.shapes.commands import Extend, Nack, Reject
from gateway.api.shapes.groups import ExtendBody
from gateway.api.tasks import Tasks
from gateway.auth.access import Access, Permission
from gateway.brokers.base import BrokerUnreachable
from gateway.codec.records import add_headers, render_parts, split_lines
from gateway.errors import RequestError
from gateway.groups.machines.copies import place_name
from gateway.groups.machines.errors import GroupError, GroupFull
from gateway.groups.machines.progress import Start
from gateway.groups.machines.subscription import Subscription as Pattern
from gateway.groups.protocol import RECEIPTS_MAX, Delivered, Groups, Receive, Run, Settled, cut, receipts_of
from gateway.routing.base import Routes, TopicView
from gateway.routing.patience import AGAIN_S
from gateway.surfaces.http.context import GatewayStats
from gateway.surfaces.ws.commands import Form, Mode, Subscribe, UpTo
from gateway.surfaces.ws.credit import Ledger
from gateway.surfaces.ws.frame_cache import FETCH_BYTES, binary_parts
from gateway.surfaces.ws.outbox import Outbox
from gateway.surfaces.ws.protocol import FRAME_BYTES_TARGET, binary_frame, messages_push, partitions_of
from gateway.surfaces.ws.rights import wanted_topics
from gateway.surfaces.ws.stream import start_spec
from store.clock import Clock
from store.errors import StoreError, UnknownQueue
from store.uncancelled import uncancelled

log = logging.getLogger(__name__)

RECEIVE_WAIT_MS = 20_000
"""How long one wait for records lasts; it is renewed."""

PATTERN_WAIT_MS = 5_000
"""The same with a pattern: topics that came meanwhile are asked for then."""

GONE_WAIT_S = 0.1
"""How long a topic that has gone may still be in the list that a pattern is matched with."""


class Queue:
    """One subscription in queue mode."""

    mode = Mode.QUEUE

    def __init__(
        self,
        command: Subscribe,
        ledger: Ledger,
        *,
        form: Form,
        consumer_name: str,
        groups: Groups,
        routes: Routes,
        access: Callable[[], Access],
        all_leases: AllLeases,
        tasks: Tasks,
        clock: Clock,
        stats: GatewayStats,
    ) -> None:
        assert command.group is not None
        self.name = command.sub
        self.group: str = command.group
        self.queue = command.queue
        self.ledger = ledger
        self._command = command
        self._form = form
        self._consumer_name = consumer_name
        self._pattern = None if command.pattern is None else Pattern(pattern=command.pattern)
        self._start = Start.FIRST if command.start is None else start_spec(command.start)
        self._groups = groups
        self._routes = routes
        self._access = access
        self._tasks = tasks
        self._clock = clock
        self._stats = stats
        self._acking: set[asyncio.Future[Sequence[Settled]]] = set()
        self._all_leases = all_leases
        self._leases = Leases(self._done, f"{consumer_name} ({command.sub})")
        self._changed = asyncio.Event()
        self._receiving: asyncio.Task[object] | None = None
        self._is_more = False  # the last receive left something
        self._asked: Receive | None = None
        self._next_bytes = 1
        self.seq = 0
        self._delivered_seq = 0

    # Beginning and end

    async def open(self) -> dict[str, object]:
        """Look whether all topics are there; the answer's fields. Raises GroupError, StoreError."""
        if self._pattern is not None:
            await self._groups.follow(self.group, self._pattern)
        topics = self._wanted_topics()
        self._all_leases.add(self.group, self._leases)
        return {"epochs": {topic.name: str(topic.topic_id) for topic in topics}, **self.state()}

    async def end(self) -> None:
        """Release what is held: what the transport took counts as an attempt, what it did not, does not."""
        if self._acking:
            await asyncio.wait(self._acking)
            await asyncio.sleep(0)  # the ledger is told of what was done in this very turn
        self._leases.sweep(self._clock.now_ms())
        self._all_leases.remove(self.group, self._leases)
        unseen = [lease.receipt for lease in self._leases.take_after(self._delivered_seq)]
        held = [lease.receipt for lease in self._leases.take_after(0)]
        try:
            await self._give_back(unseen)
            for some in _in_calls(held):
                await self._groups.nack(self.group, some, delay_ms=0, reason="released")
        except (GroupError, StoreError) as error:
            log.info("group=%s leases run out by themselves: %s", self.group, error)

    # What is

    def topics(self) -> list[str]:
        """Topics it asks for now."""
        return [topic.name for topic in self._wanted_topics()]

    @property
    def is_named(self) -> bool:
        """Whether its topics are named. Those of a pattern come and go with the rights to them."""
        return self._pattern is None

    def partition_count(self) -> int:
        """A queue owns no partition."""
        return 0

    def state(self) -> dict[str, object]:
        """What a client must know to go on."""
        return {
            "partitions": partitions_of(
                (topic.name, number) for topic in self._wanted_topics() for number in range(topic.partitions)
            )
        }

    # What the client does

    def confirm(self, seen: int) -> None:
        """Acks tell as much."""

    def credit_changed(self) -> None:
        """Permit, pause or resume."""
        self._changed.set()
        if self.ledger.paused and self._receiving is not None:
            self._receiving.cancel()

    async def push(self, outbox: Outbox) -> NoReturn:
        """Receive and push for ever. Raises RequestError, GroupError, StoreError, OutboxClosed."""
        while True:
            self._leases.sweep(self._clock.now_ms())
            if not self.ledger.fits(self._next_bytes):
                await self._credit()
                continue
            topics = self._wanted_topics()
            if not topics:  # a pattern that fits nothing yet
                await asyncio.sleep(PATTERN_WAIT_MS / 1000)
                continue
            try:
                runs = await self._receive(topics)
            except UnknownQueue:
                if self._pattern is None:
                    raise
                await asyncio.sleep(GONE_WAIT_S)
                continue
            except BrokerUnreachable as error:  # its node restarts: until it is back there is nothing to hand out
                log.info("group=%s waits: %s", self.group, error)
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                for topic in topics:
                    if topic.name.startswith(
                        "%"
                    ):  # who may read what a group has written, changes with what is written
                        self._access().check(Permission.RECEIVE, topic=topic.name)
            except RequestError:
                self._give_back_soon(runs)
                raise
            await self._push(runs, outbox)

    async def rewind(self, seen: int) -> None:
        """Give back what went in frames after `seen`. Raises GroupError, StoreError."""
        unseen = self._leases.take_after(seen)
        # With auto_ack what the transport took is acked, or about to be.
        seen_or_acked = self._delivered_seq if self._command.auto_ack else seen
        back = [lease.receipt for lease in unseen if lease.frame > seen_or_acked]
        self.seq = min(self.seq, seen)
        self._delivered_seq = min(self._delivered_seq, seen)
        for lease in unseen:
            self.ledger.unsent(1, lease.byte_count)
        if back:
            await self._tasks.whole(self._give_back(back))

    def is_current(self) -> bool:
        """Each receive asks for the topics there are."""
        return True

    async def refresh(self) -> None:
        """As `is_current` says."""

    async def ack(self, receipts: Sequence[str]) -> Sequence[Settled]:
        """Done with these. Raises GroupError, StoreError."""
        return await uncancelled(self.begin_ack(receipts))

    async def ack_up_to(self, fed_partitions: Sequence[UpTo]) -> list[int]:
        """Done with all this subscription holds of these partitions up to there; how many each."""
        counts = []
        receipts: list[str] = []
        for topic, partition, next_offset in fed_partitions:
            mine = self._leases.up_to(place_name(topic, self.queue), partition, next_offset - 1)
            counts.append(len(mine))
            receipts += mine
        for some in _in_calls(receipts):
            await self.ack(some)
        return counts

    async def settle(self, command: Nack | Reject | Extend) -> Sequence[Settled]:
        """Not done, never, or not yet. Raises GroupError, StoreError."""
        return await self._tasks.whole(self._settle_now(command))

    def begin_ack(self, receipts: Sequence[str]) -> asyncio.Future[Sequence[Settled]]:
        """The same, begun on return: it goes on whether or not anybody waits."""
        acking = begin_ack(self._groups, self._all_leases, self.group, receipts, self._leases)
        self._acking.add(acking)
        self._tasks.hold(acking)
        acking.add_done_callback(self._acking.discard)
        return acking

    # Inside

    async def _settle_now(self, command: Nack | Reject | Extend) -> Sequence[Settled]:
        if not isinstance(command, Extend):
            return await self._settled(command)
        invisible_ms = command.invisible_ms or self._command.invisible_ms
        if invisible_ms is None:
            invisible_ms = self._groups.config(self.group).invisible_ms
        results = await self._settled(ExtendBody(receipts=command.receipts, invisible_ms=invisible_ms))
        self._changed.set()  # a wait for a lease to end may be shorter now
        return results

    async def _settled(self, wanted: Nack | Reject | ExtendBody) -> Sequence[Settled]:
        """Credit of what is settled, or is not ours any more, returns."""
        return await settle(self._groups, self._clock, self._all_leases, self.group, wanted, self._leases)

    def _wanted_topics(self) -> list[TopicView]:
        return wanted_topics(self._routes, self._command.topics, self._pattern, self._access)

    async def _credit(self) -> None:
        """Wait until there may be credit: it came, or the oldest lease is over. Each frame waits here; a timer costs
        less than `asyncio.timeout`."""
        self._changed.clear()
        timer = None
        if self._leases:
            wait_s = max(self._leases.next_end_ms - self._clock.now_ms(), 0) / 1000 + 0.001
            timer = asyncio.get_running_loop().call_later(wait_s, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()

    async def _receive(self, topics: Sequence[TopicView]) -> Sequence[Run]:
        if self._is_more:  # then this need not wait, and takes no task that a pause could end
            self._is_more = False
            with suppress(GroupFull):  # there may be room before a wait is over
                received = await self._groups.receive(self.group, self._request(topics, wait_ms=0))
                if received.runs:
                    self._is_more = received.backlog > 0
                    return received.runs
        wait_ms = RECEIVE_WAIT_MS if self._pattern is None else PATTERN_WAIT_MS
        receiving = asyncio.ensure_future(self._groups.receive(self.group, self._request(topics, wait_ms=wait_ms)))
        self._receiving = receiving
        try:
            received = await receiving
            self._is_more = received.backlog > 0
            return received.runs
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not task.cancelling():
                return ()  # paused
            # It may have leased something in the very turn in which we are cancelled.
            if receiving.done() and not receiving.cancelled() and receiving.exception() is None:
                self._give_back_soon(receiving.result().runs)
            raise
        finally:
            self._receiving = None

    def _request(self, topics: Sequence[TopicView], *, wait_ms: int) -> Receive:
        """What is asked for next. The one before, where that was the same: nearly all are."""
        command, ledger, before = self._command, self.ledger, self._asked
        names = tuple([topic.name for topic in topics])
        max_messages, byte_budget = min(ledger.message_budget, command.batch), ledger.byte_budget
        max_bytes = FETCH_BYTES if byte_budget is None else max(min(FETCH_BYTES, byte_budget), 1)
        if before is None or (before.topics, before.max_messages, before.max_bytes, before.wait_ms) != (
            names, max_messages, max_bytes, wait_ms,
        ):  # fmt: skip
            self._asked = before = Receive(
                topics=names,
                max_messages=max_messages,
                max_bytes=max_bytes,
                wait_ms=wait_ms,
                invisible_ms=command.invisible_ms,
                tags=None if command.filter is None else command.filter.tags,
                consumer=self._consumer_name,
                start=self._start,
                queue=self.queue,
            )
        return before

    async def _give_back(self, receipts: Sequence[str]) -> None:
        for some in _in_calls(receipts):
            await self._groups.give_back(self.group, some)

    def _give_back_soon(self, runs: Sequence[Run]) -> None:
        """These were never sent: they need not wait for their leases to end (Q1)."""
        if runs:
            self._tasks.finish(self._groups.give_back(self.group, receipts_of(runs)))

    async def _push(self, runs: Sequence[Run], outbox: Outbox) -> None:
        """Send what was leased, as far as credit goes; what does not fit goes back."""
        is_binary = self._form is Form.BINARY
        text, payloads = b"", []
        total, sizes = sum([len(run.receipts) for run in runs]), []
        if is_binary:
            messages = [self._message(one) for run in runs for one in run.messages()]
            heads, payloads = split_lines([head for head, _ in messages]), [payload for _, payload in messages]
            sizes = list(map(len, payloads))
        elif self._is_one_frame(text := self._lines(runs), total):
            heads = []
        else:
            heads = text.split(b"\n")
            sizes = list(map(len, heads))
        at = 0
        while at < total:
            if not heads:
                count, size_bytes = total, len(text) - total + 1
            else:
                self._next_bytes = sizes[at]
                if not self.ledger.fits(sizes[at]):
                    left_runs = cut(runs, at, total)
                    await self._tasks.whole(self._groups.give_back(self.group, receipts_of(left_runs)))
                    return
                count, size_bytes = self._cut(sizes, at)
            end = at + count
            self._next_bytes = 1
            self.ledger.sent(count, size_bytes)
            self.seq += 1
            seq = self.seq
            going = cut(runs, at, end)
            self._leases.took(going, None if self.ledger.bytes is None else sizes[at:end], seq)
            left = None if self.ledger.bytes is None else self.ledger.bytes.left
            frame = messages_push(
                self.name,
                seq,
                b",".join(heads[at:end]) if heads else text.replace(b"\n", b","),
                size_bytes=size_bytes,
                credit=self.ledger.messages.left,
                credit_bytes=left,
            )
            if is_binary:
                frame = binary_frame(frame, b"".join(payloads[at:end]))
            try:
                await outbox.send(frame, is_binary=is_binary)
            except BaseException:
                self._give_back_soon(cut(runs, end, total))
                raise
            self._delivered_seq = seq
            self._stats.ws_sent_message_count += count
            self._stats.ws_sent_byte_count += len(frame)
            if self._command.auto_ack:
                self.begin_ack(receipts_of(going)).add_done_callback(self._auto_acked)
            at = end

    def _lines(self, runs: Sequence[Run]) -> bytes:
        """Each record as `_message` has it, as JSON text. A line break is in no JSON that is shown as it is
        (codec/records.py, R4), so it is between two."""
        lines: list[bytes] = []
        for run in runs:
            text = filled_in(self._template_of, run, b"\n")
            lines += [orjson.dumps(self._message(one)[0]) for one in run.messages()] if text is None else [text]
        return b"\n".join(lines)

    def _is_one_frame(self, text: bytes, count: int) -> bool:
        """Whether so many records, which are these lines, go as they are: nearly all that are received do, and the
        size of each is asked for by none."""
        room = min(self._command.batch, self.ledger.message_budget)
        return self.ledger.bytes is None and count <= room and len(text) - count < FRAME_BYTES_TARGET

    def _template_of(self, run: Run, forms: Forms) -> Template:
        topic = run.topic.replace("%", "%%")  # a name needs no escapes in JSON
        with_lease = not self._command.auto_ack
        lease = f',"receipt":"{forms.receipt}","visible_until":{run.until_ms}' if with_lease else ""
        text = (
            f'{{"topic":"{topic}","partition":{run.partition},"offset":%d,"timestamp":{forms.timestamp},'
            f'"store_timestamp":{run.store_time_ms},"attempt":{run.attempt},"key":{forms.key},"value":%b{lease}}}'
        )
        return text.encode(), ("offset", "timestamp", "key", "value", *(["receipt"] if with_lease else []))

    def _message(self, one: Delivered) -> tuple[dict[str, object], bytes]:
        message: dict[str, object] = {
            "topic": one.topic,
            "partition": one.partition,
            "offset": one.offset,
            **queue_as_json(one),
            "timestamp": one.timestamp_ms,
            "store_timestamp": one.store_time_ms,
            "attempt": one.attempt,
        }
        payload = b""
        if self._form is Form.BINARY:
            payload = binary_parts(message, one.key, one.value, raw_key=one.raw_key)
            if one.headers:
                add_headers(message, one.headers)
        else:
            message |= render_parts(
                one.key, one.value, one.headers, None, json_values=one.json_value, raw_keys=one.raw_key
            )
        if one.message_group is not None:
            message["message_group"] = one.message_group
        if not self._command.auto_ack:
            message["receipt"] = one.receipt
            message["visible_until"] = one.until_ms
        return message, payload

    def _cut(self, sizes: Sequence[int], at: int) -> tuple[int, int]:
        """How many of the messages from one on go into the next frame, and their bytes: at least that one."""
        count_max = min(self._command.batch, self.ledger.message_budget)
        byte_budget = self.ledger.byte_budget
        bytes_max = FRAME_BYTES_TARGET if byte_budget is None else min(FRAME_BYTES_TARGET, byte_budget)
        count, size_bytes = 1, sizes[at]
        for size in sizes[at + 1 : at + count_max]:
            if size_bytes + size > bytes_max:
                break
            count += 1
            size_bytes += size
        return count, size_bytes

    def _auto_acked(self, acked: asyncio.Future[Sequence[Settled]]) -> None:
        if not acked.cancelled() and (error := acked.exception()) is not None:
            log.warning("group=%s could not ack, the records come again: %s", self.group, error)

    def _done(self, count: int, byte_count: int) -> None:
        self.ledger.returned(count, byte_count)
        self._changed.set()


def _in_calls(receipts: Sequence[str]) -> Iterator[Sequence[str]]:
    """As many as one call takes: a socket may hold more, when it grants new credit before it settles."""
    for at in range(0, len(receipts), RECEIPTS_MAX):
        yield receipts[at : at + RECEIPTS_MAX]
