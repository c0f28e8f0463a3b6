"""The works, each written once for every peer. A work takes a client and answers with numbers, or raises WorkFailed.

A value is 100 bytes of ASCII (1,024 where the log is filled for a restart): 16 hexadecimal digits that tell it from
the others, and a filler. The digits are a number in the row, or the time (µs) at which it was sent or is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress

from loadtest.peers.peer import Client, DelayingClient
from loadtest.stats import percentile

VALUE_BYTES = 100
LARGE_VALUE_BYTES = 1024
BATCH_RECORDS = 1_000
LARGE_BATCH_RECORDS = 500
IN_FLIGHT = 4
FILL_S, FILL_JUDGED_AFTER_S = 200.0, 10.0
"""How long filling a log may take, and when to judge whether it will."""

MAKERS = 64
"""Topics that are being made at a time."""

STALL_TIMEOUT_S = 30.0
"""A reader that gets nothing for so long has lost what it waits for."""

DELAY_AHEAD_MS = 1_500
DELAY_SPREAD_MS = 1_000
ACCEPTED_PER_S = 4_000

Numbers = Mapping[str, float]


class WorkFailed(Exception):
    """The peer did not do the work, or did it wrongly."""


def value(number: int, size: int = VALUE_BYTES) -> bytes:
    """The value of that number."""
    return b"%016x" % number + b"x" * (size - 16)


def number_of(one: bytes) -> int:
    """The inverse of `value`. Raises WorkFailed."""
    try:
        return int(one[:16], 16)
    except ValueError:
        raise WorkFailed(f"a value came back that was never sent: {one[:40]!r}") from None


async def batched(client: Client, topic: str, *, duration_s: float) -> Numbers:
    """Batches of 1,000, four of them unanswered at any time. Every one of them is numbered from 0."""
    await client.create(topic)
    await client.send(topic, [value(number) for number in range(BATCH_RECORDS)])
    next_number = BATCH_RECORDS
    started_s = time.perf_counter()

    async def sender() -> None:
        nonlocal next_number
        while time.perf_counter() - started_s < duration_s:
            first, next_number = next_number, next_number + BATCH_RECORDS
            await client.send(topic, [value(number) for number in range(first, first + BATCH_RECORDS)])

    await _together(sender for _ in range(IN_FLIGHT))
    took_s = time.perf_counter() - started_s
    return {"records_per_s": (next_number - BATCH_RECORDS) / took_s, "records": next_number, "took_s": took_s}


async def consume(client: Client, topic: str, *, count: int) -> Numbers:
    """The topic from its start: every number below `count`, once."""
    seen = bytearray(count)
    left = count
    started_s = time.perf_counter()
    async with aclosing(_pieces(client, topic)) as pieces:
        async for values in pieces:
            for one in values:
                number = number_of(one)
                if number >= count or seen[number]:
                    raise WorkFailed(f"record {number} came twice, or was never sent")
                seen[number] = 1
            left -= len(values)
            if left <= 0:
                break
    took_s = time.perf_counter() - started_s
    return {"records_per_s": count / took_s, "records": count, "took_s": took_s}


async def push(client: Client, topic: str, *, rate_per_s: int, duration_s: float) -> Numbers:
    """Single records at a fixed rate, each awaited by one reader: from before the send to the reader's hand (ms).

    Sends go out on a timetable, whatever became of those before: a stall counts against every record it delays.
    """
    await client.create(topic)
    count = int(rate_per_s * duration_s)
    latencies_ms: list[float] = []

    async def reader() -> None:
        async with aclosing(_pieces(client, topic)) as pieces:
            async for values in pieces:
                now_us = time.time_ns() // 1000
                latencies_ms.extend((now_us - sent_us) / 1000 for sent_us in map(number_of, values) if sent_us)
                if len(latencies_ms) >= count:
                    return

    async def sender() -> None:
        await asyncio.sleep(0.5)
        start_s = time.perf_counter()
        async with asyncio.TaskGroup() as sends:
            for number in range(count):
                due_s = start_s + number / rate_per_s
                if (ahead_s := due_s - time.perf_counter()) > 0:
                    await asyncio.sleep(ahead_s)
                due_us = time.time_ns() // 1000 + min(int(ahead_s * 1e6), 0)
                sends.create_task(_send(client, topic, [value(due_us)]))

    await client.send(topic, [value(0)])  # some peers know a topic only once it has been sent to
    await _together([reader, sender])
    return {
        "records": count,
        "p50_ms": percentile(latencies_ms, 50),
        "p99_ms": percentile(latencies_ms, 99),
        "max_ms": max(latencies_ms),
    }


async def delayed(
    client: DelayingClient,
    topic: str,
    *,
    count: int,
    spread_ms: int | None = None,
    accepted_per_s: int = ACCEPTED_PER_S,
) -> Numbers:
    """`count` records due evenly within `spread_ms` (a second), accepted before that begins; how late each is in a
    reader's hand (ms). A peer that accepts fewer than `accepted_per_s` has failed: all must wait before the first one
    is due.
    """
    spread_ms = spread_ms or DELAY_SPREAD_MS
    await client.create(topic)
    await client.send(topic, [value(0)])
    lateness_ms: list[float] = []

    async def reader() -> None:
        stall_timeout_s = max(start_ms / 1000 - time.time(), 0) + STALL_TIMEOUT_S
        async with aclosing(_pieces(client, topic, stall_timeout_s)) as pieces:
            async for values in pieces:
                now_us = time.time_ns() // 1000
                lateness_ms.extend((now_us - due_us) / 1000 for due_us in map(number_of, values) if due_us)
                if len(lateness_ms) >= count:
                    return

    started_s = time.perf_counter()
    ahead_ms = DELAY_AHEAD_MS + count * 1000 // accepted_per_s
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
    accepted_s = time.perf_counter() - started_s
    with suppress(TimeoutError):
        async with asyncio.timeout((start_ms + spread_ms) / 1000 - time.time() + STALL_TIMEOUT_S):
            await reader()
    if len(lateness_ms) != count:
        raise WorkFailed(
            f"{len(lateness_ms):,} of {count:,} delayed records came by {STALL_TIMEOUT_S:g} s after the last was due"
        )
    if min(lateness_ms) < 0:
        raise WorkFailed(f"a delayed record came {-min(lateness_ms):.1f} ms early")
    return {
        "records": count,
        "accepted_per_s": count / accepted_s,
        "p50_ms": percentile(lateness_ms, 50),
        "p99_ms": percentile(lateness_ms, 99),
        "max_ms": max(lateness_ms),
    }


async def topics(client: Client, prefix: str, *, count: int) -> Numbers:
    """Make `count` topics; then single records to one after the other, 64 unanswered at any time."""
    names = [f"{prefix}{number}" for number in range(count)]
    pending = iter(names)

    async def maker() -> None:
        for name in pending:
            await client.create(name)
            await client.send(name, [value(0)])

    started_s = time.perf_counter()
    await _together(maker for _ in range(MAKERS))
    made_s = time.perf_counter() - started_s
    sends = iter(range(max(2_000, count)))

    async def sender() -> None:
        for number in sends:
            await client.send(names[number % count], [value(number)])

    started_s = time.perf_counter()
    await _together(sender for _ in range(64))
    took_s = time.perf_counter() - started_s
    return {"made_per_s": count / made_s, "records_per_s": max(2_000, count) / took_s}


async def fill(client: Client, topic: str, *, byte_count: int, within_s: float = FILL_S) -> Numbers:
    """That many bytes of values of 1 KiB. Gives up early when it would take much longer than it may."""
    await client.create(topic)
    size = LARGE_BATCH_RECORDS * LARGE_VALUE_BYTES
    batches = iter(range(max(byte_count // size, 1)))
    started_s = time.perf_counter()

    async def sender() -> None:
        for batch in batches:
            took_s = time.perf_counter() - started_s
            would_take_s = took_s * byte_count / max(batch * size, 1)
            if took_s > FILL_JUDGED_AFTER_S and would_take_s > within_s:
                raise WorkFailed(f"it would take {would_take_s:,.0f} s to send {byte_count:,} bytes")
            first = batch * LARGE_BATCH_RECORDS
            await client.send(
                topic, [value(number, LARGE_VALUE_BYTES) for number in range(first, first + LARGE_BATCH_RECORDS)]
            )

    await _together(sender for _ in range(IN_FLIGHT))
    return {"mb_per_s": byte_count / 1e6 / (time.perf_counter() - started_s)}


async def create(client: Client, topic: str) -> Numbers:
    """A topic for a work that is not done by the client."""
    await client.create(topic)
    return {}


async def first_record(client: Client, topic: str) -> Numbers:
    """Read one record: the server works again."""
    async with aclosing(_pieces(client, topic)) as pieces:
        async for _ in pieces:
            break
    return {"records": 1}


async def _send(client: Client, topic: str, values: Sequence[bytes]) -> None:
    await client.send(topic, values)


async def _together(makers: Iterable[Callable[[], Awaitable[None]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for maker in makers:
            group.create_task(_awaited(maker()))


async def _awaited(one: Awaitable[None]) -> None:
    await one


async def _pieces(client: Client, topic: str, stall_timeout_s: float | None = None) -> AsyncGenerator[Sequence[bytes]]:
    """`read`, which fails when nothing comes."""
    stall_timeout_s = stall_timeout_s or STALL_TIMEOUT_S
    async with aclosing(client.read(topic)) as pieces:
        while True:
            try:
                async with asyncio.timeout(stall_timeout_s):
                    piece = await anext(pieces)
            except TimeoutError:
                raise WorkFailed(f"nothing came for {stall_timeout_s:g} s") from None
            yield piece
