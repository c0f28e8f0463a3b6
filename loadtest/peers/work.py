"""The workloads of Python clients, each written once for every peer. A work takes a client and answers with numbers, or
raises WorkFailed.

A value is 100 bytes of ASCII (1,024 where the log is filled for a restart): 16 hexadecimal digits that tell it from
the others, and a filler. The digits are a number in the row, or the time (µs) at which it was sent or is due.

A rate is taken within a window that begins `warm_s` after the first send. A batch counts with the share of its time
from send to acknowledgement that lies in the window, so a peer that answers a few large batches a second is measured
as exactly as one that answers thousands.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress

from loadtest.peers.peer import Client, DelayingClient, Numbers, WorkFailed
from loadtest.stats import percentile

VALUE_BYTES = 100
LARGE_VALUE_BYTES = 1024
BATCH_RECORDS = 1_000
LARGE_BATCH_RECORDS = 500
IN_FLIGHT = 4
SINGLES_IN_FLIGHT = 64
SINGLES_TOPICS = 10
FILL_S, FILL_JUDGED_AFTER_S = 200.0, 10.0
"""How long filling a log for a restart may take, and when to judge whether it will."""

STALL_TIMEOUT_S = 30.0
"""A reader that gets nothing for so long has lost what it waits for."""

DELAY_AHEAD_MS = 1_500


def value(number: int, size: int = VALUE_BYTES) -> bytes:
    """The value of that number."""
    return b"%016x" % number + b"x" * (size - 16)


def number_of(one: bytes) -> int:
    """The inverse of `value`. Raises WorkFailed."""
    try:
        return int(one[:16], 16)
    except ValueError:
        raise WorkFailed(f"a value came back that was never sent: {one[:40]!r}") from None


async def batched(client: Client, topic: str, *, duration_s: float, warm_s: float) -> Numbers:
    """Batches of 1,000, four of them unanswered at any time. The records are numbered from 0. The topic stays."""
    await client.create(topic)
    window = Window(warm_s, duration_s)
    next_number = 0

    async def sender() -> None:
        nonlocal next_number
        while (sent_s := time.monotonic()) < window.ended_s:
            first, next_number = next_number, next_number + BATCH_RECORDS
            await client.send(topic, [value(number) for number in range(first, first + BATCH_RECORDS)])
            window.count(BATCH_RECORDS, sent_s)

    await _together(sender for _ in range(IN_FLIGHT))
    return {**window.numbers(), "stored": next_number}


async def scan(client: Client, topic: str, *, count: int, duration_s: float, warm_s: float) -> Numbers:
    """Read the topic of `batched` from its start, again and again; at least once to its end.

    The clock runs from the first piece of a pass to its last, so connecting and starting to read are outside. In a
    pass no number comes twice and none from outside 0 to `count`; in a whole pass each one comes.
    """
    records = timed_records = pass_count = 0
    warm_left_s, spent_s, began_s, ended_s = warm_s, 0.0, 0.0, 0.0
    while not (pass_count and spent_s >= duration_s):
        seen = _Seen(count)
        last_s: float | None = None
        has_gap = False
        async with aclosing(_pieces(client.read(topic))) as pieces:
            async for values in pieces:
                now_s = time.monotonic()
                seen.add(values)
                if warm_left_s > 0:
                    warm_left_s -= now_s - (last_s or now_s)
                    began_s = now_s
                else:
                    records += len(values)
                    if last_s is not None:
                        timed_records += len(values)
                        spent_s += now_s - last_s
                has_gap = last_s is not None
                last_s = ended_s = now_s
                if not seen.left or (pass_count and spent_s >= duration_s):
                    break
        if not has_gap:
            raise WorkFailed(f"all {count:,} records came in one piece: too few to take a time")
        pass_count += not seen.left
    return {
        "records": records,
        "records_per_s": timed_records / spent_s,
        "took_s": spent_s,
        "passes": pass_count,
        "began_s": began_s,
        "ended_s": ended_s,
    }


async def receive(client: Client, topic: str, *, count: int, fill_s: float, duration_s: float) -> Numbers:
    """Consume a work queue with an ack for every record: until it is empty, or for `duration_s` from the first piece.

    It is filled before, outside the clock, with at most `count` records within about `fill_s`.
    """
    await client.create(topic)
    seen = _Seen(await filled(client, topic, count, fill_s))
    records, began_s, ended_s = 0, 0.0, 0.0
    async with aclosing(_pieces(client.receive(topic))) as pieces:
        async for values in pieces:
            ended_s = time.monotonic()
            seen.add(values)
            if began_s:
                records += len(values)
            else:
                began_s = ended_s
            if not seen.left or ended_s - began_s >= duration_s:
                break
    await client.drop(topic)
    if not records:
        raise WorkFailed("all records came in one piece: too few to take a time")
    took_s = ended_s - began_s
    return {
        "records": records,
        "records_per_s": records / took_s,
        "took_s": took_s,
        "began_s": began_s,
        "ended_s": ended_s,
    }


async def singles(client: Client, topic: str, *, duration_s: float, warm_s: float) -> Numbers:
    """Single records to ten topics in turn, 64 unanswered at any time."""
    names = [f"{topic}-{number}" for number in range(SINGLES_TOPICS)]
    for name in names:
        await client.create(name)
        await client.send(name, [value(0)])  # some peers make a topic when it is first sent to
    window = Window(warm_s, duration_s)
    next_number = 0

    async def sender() -> None:
        nonlocal next_number
        while (sent_s := time.monotonic()) < window.ended_s:
            number, next_number = next_number, next_number + 1
            await client.send(names[number % SINGLES_TOPICS], [value(number)])
            window.count(1, sent_s)

    await _together(sender for _ in range(SINGLES_IN_FLIGHT))
    for name in names:
        await client.drop(name)
    return window.numbers()


async def push(client: Client, topic: str, *, rate_per_s: int, duration_s: float, warm_s: float) -> Numbers:
    """Single records at a fixed rate, each awaited by one reader: from before the send to the reader's hand (ms).

    Sends go out on a timetable, whatever became of those before: a stall counts against every record it delays.
    """
    await client.create(topic)
    warm_count, count = int(rate_per_s * warm_s), int(rate_per_s * duration_s)
    latencies_ms: list[float] = []
    began_s = 0.0

    async def reader() -> None:
        async with aclosing(_pieces(client.read(topic))) as pieces:
            async for values in pieces:
                now_us = time.time_ns() // 1000
                latencies_ms.extend((now_us - sent_us) / 1000 for sent_us in map(number_of, values) if sent_us)
                if len(latencies_ms) >= count:
                    return

    async def sender() -> None:
        nonlocal began_s
        await asyncio.sleep(0.5)
        start_s = time.monotonic()
        began_s = start_s + warm_s
        async with asyncio.TaskGroup() as sends:
            for number in range(warm_count + count):
                due_s = start_s + number / rate_per_s
                if (ahead_s := due_s - time.monotonic()) > 0:
                    await asyncio.sleep(ahead_s)
                due_us = time.time_ns() // 1000 + min(int(ahead_s * 1e6), 0)
                sends.create_task(_send(client, topic, [value(due_us if number >= warm_count else 0)]))

    await client.send(topic, [value(0)])  # some peers know a topic only once it has been sent to
    await _together([reader, sender])
    ended_s = time.monotonic()
    await client.drop(topic)
    return {**_times(latencies_ms), "records": count, "began_s": began_s, "ended_s": ended_s}


async def delayed(client: DelayingClient, topic: str, *, count: int, spread_ms: int, accepted_per_s: float) -> Numbers:
    """`count` records due evenly within `spread_ms`, all accepted before that begins; how late each is in a reader's
    hand (ms). A peer that accepts fewer than `accepted_per_s` has failed: all must wait before the first one is due.
    """
    await client.create(topic)
    await client.send(topic, [value(0)])
    lateness_ms: list[float] = []

    async def reader() -> None:
        stall_timeout_s = max(start_ms / 1000 - time.time(), 0) + STALL_TIMEOUT_S
        async with aclosing(_pieces(client.read(topic), stall_timeout_s)) as pieces:
            async for values in pieces:
                now_us = time.time_ns() // 1000
                lateness_ms.extend((now_us - due_us) / 1000 for due_us in map(number_of, values) if due_us)
                if len(lateness_ms) >= count:
                    return

    began_s = time.monotonic()
    ahead_ms = DELAY_AHEAD_MS + int(count * 1000 / accepted_per_s)
    start_ms = time.time_ns() // 1_000_000 + ahead_ms
    batches = iter(range(0, count, BATCH_RECORDS))

    async def sender() -> None:
        for first in batches:
            if time.time() * 1000 > start_ms:
                raise WorkFailed(f"only {first:,} of {count:,} delayed records were accepted within {ahead_ms:,} ms")
            numbers = range(first, min(first + BATCH_RECORDS, count))
            due = [start_ms + number * 7919 % spread_ms for number in numbers]
            await client.delay(topic, [value(due_ms * 1000) for due_ms in due], due)

    await _together(sender for _ in range(IN_FLIGHT))
    accepted_s = time.monotonic() - began_s
    with suppress(TimeoutError):
        async with asyncio.timeout((start_ms + spread_ms) / 1000 - time.time() + STALL_TIMEOUT_S):
            await reader()
    ended_s = time.monotonic()
    if len(lateness_ms) != count:
        raise WorkFailed(
            f"{len(lateness_ms):,} of {count:,} delayed records came by {STALL_TIMEOUT_S:g} s after the last was due"
        )
    if min(lateness_ms) < 0:
        raise WorkFailed(f"a delayed record came {-min(lateness_ms):.1f} ms early")
    await client.drop(topic)
    accepted = {"records": count, "accepted_per_s": count / accepted_s}
    return {**_times(lateness_ms), **accepted, "began_s": began_s, "ended_s": ended_s}


async def topics(client: Client, topic: str, *, count: int) -> Numbers:
    """Make `count` topics, 64 at a time; then single records to one after the other, 64 unanswered at any time."""
    names = [f"{topic}-{number}" for number in range(count)]
    pending = iter(names)

    async def maker() -> None:
        for name in pending:
            await client.create(name)
            await client.send(name, [value(0)])

    started_s = time.monotonic()
    await _together(maker for _ in range(SINGLES_IN_FLIGHT))
    began_s = time.monotonic()
    sends = iter(range(max(2_000, count)))

    async def sender() -> None:
        for number in sends:
            await client.send(names[number % count], [value(number)])

    await _together(sender for _ in range(SINGLES_IN_FLIGHT))
    ended_s = time.monotonic()
    records = max(2_000, count)
    return {
        "made_per_s": count / (began_s - started_s),
        "records": records,
        "records_per_s": records / (ended_s - began_s),
        "began_s": began_s,
        "ended_s": ended_s,
    }


async def fill(client: Client, topic: str, *, byte_count: int, within_s: float = FILL_S) -> Numbers:
    """That many bytes of values of 1 KiB; the topic stays. Gives up early when it would take longer than it may."""
    await client.create(topic)
    size = LARGE_BATCH_RECORDS * LARGE_VALUE_BYTES
    batches = iter(range(max(byte_count // size, 1)))
    started_s = time.monotonic()

    async def sender() -> None:
        for batch in batches:
            took_s = time.monotonic() - started_s
            would_take_s = took_s * byte_count / max(batch * size, 1)
            if took_s > FILL_JUDGED_AFTER_S and would_take_s > within_s:
                raise WorkFailed(f"it would take {would_take_s:,.0f} s to send {byte_count:,} bytes")
            first = batch * LARGE_BATCH_RECORDS
            await client.send(
                topic, [value(number, LARGE_VALUE_BYTES) for number in range(first, first + LARGE_BATCH_RECORDS)]
            )

    await _together(sender for _ in range(IN_FLIGHT))
    return {"mb_per_s": byte_count / 1e6 / (time.monotonic() - started_s)}


async def first_record(client: Client, topic: str) -> Numbers:
    """Read one record: the server works again."""
    async with aclosing(_pieces(client.read(topic))) as pieces:
        async for _ in pieces:
            break
    return {"records": 1}


async def drop(client: Client, topic: str) -> Numbers:
    """Remove a topic that a work has left."""
    await client.drop(topic)
    return {}


class Window:
    """The steady state of senders: from `warm_s` after now, `duration_s` long."""

    def __init__(self, warm_s: float, duration_s: float) -> None:
        self.began_s = time.monotonic() + warm_s
        self.ended_s = self.began_s + duration_s
        self._records = 0.0

    def count(self, records: int, sent_s: float) -> None:
        """Records that were sent then and are acknowledged now: the share of that time within the window counts."""
        now_s = time.monotonic()
        within_s = min(now_s, self.ended_s) - max(sent_s, self.began_s)
        if within_s > 0:
            self._records += records * within_s / (now_s - sent_s)

    def numbers(self) -> Numbers:
        """Raises WorkFailed when nothing was acknowledged."""
        if not self._records:
            raise WorkFailed("nothing was acknowledged within the window")
        took_s = self.ended_s - self.began_s
        return {
            "records": round(self._records),
            "records_per_s": self._records / took_s,
            "took_s": took_s,
            "began_s": self.began_s,
            "ended_s": self.ended_s,
        }


class _Seen:
    """Which of the numbers below `count` have come."""

    def __init__(self, count: int) -> None:
        self._marks = bytearray(count)
        self.left = count

    def add(self, values: Sequence[bytes]) -> None:
        """Raises WorkFailed for a number that has come already, or was never sent."""
        marks = self._marks
        try:
            numbers = [int(one[:16], 16) for one in values]  # as `number_of`, at half its cost: every client bears it
        except ValueError:
            numbers = [number_of(one) for one in values]
        for number in numbers:
            if number >= len(marks) or marks[number]:
                raise WorkFailed(f"record {number} came twice, or was never sent")
            marks[number] = 1
        self.left -= len(values)


async def filled(client: Client, topic: str, count_max: int, within_s: float) -> int:
    """Send numbered records in batches, one at least, at most so many and for about so long; how many."""
    next_number = 0
    deadline_s = time.monotonic() + within_s

    async def sender() -> None:
        nonlocal next_number
        while next_number < count_max and (not next_number or time.monotonic() < deadline_s):
            numbers = range(next_number, min(next_number + BATCH_RECORDS, count_max))
            next_number = numbers.stop
            await client.send(topic, [value(number) for number in numbers])

    await _together(sender for _ in range(IN_FLIGHT))
    return next_number


def _times(found_ms: Sequence[float]) -> Numbers:
    return {"p50_ms": percentile(found_ms, 50), "p99_ms": percentile(found_ms, 99), "max_ms": max(found_ms)}


async def _send(client: Client, topic: str, values: Sequence[bytes]) -> None:
    await client.send(topic, values)


async def _together(makers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for maker in makers:
            group.create_task(_awaited(maker()))


async def _awaited(one: Awaitable[None]) -> None:
    await one


async def _pieces(
    source: AsyncGenerator[Sequence[bytes]], stall_timeout_s: float | None = None
) -> AsyncGenerator[Sequence[bytes]]:
    """What comes, without empty pieces; fails when nothing does."""
    stall_timeout_s = stall_timeout_s or STALL_TIMEOUT_S
    async with aclosing(source) as pieces:
        while True:
            try:
                async with asyncio.timeout(stall_timeout_s):
                    piece = await anext(pieces)
            except TimeoutError:
                raise WorkFailed(f"nothing came for {stall_timeout_s:g} s") from None
            if piece:
                yield piece
