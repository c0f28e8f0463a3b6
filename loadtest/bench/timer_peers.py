"""What people would use instead of the timer, measured at the same work: a Redis sorted set, and beanstalkd.

Both accept `count` records of 100 bytes that are due in one second, sent in batches of 1,000 over one connection, and
hand them on when they are due. Redis: a client polls every 10 ms with a script that moves what is due to a list, 1,000
at a time. beanstalkd: delayed jobs (its delays are whole seconds), taken by `reserve` and `delete`, pipelined.

Each is measured twice: durable as we are (Redis appendfsync always; beanstalkd -f 0, which syncs after every job),
and as it comes (everysec; -f 50 means at most 50 ms between syncs, its own default). beanstalkd syncing after every
job gets a tenth of the work: it would take minutes. Lateness is measured as ours is: 5,000 due a second, evenly, for
some seconds; from the due time until the client that hands them on has them. Neither rolls, cancels exactly, or
delivers exactly once over a crash of the mover.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from loadtest.bench.timer_work import BATCH_RECORDS, VALUE, Row, TooSlow, percentiles
from loadtest.peers.beanstalkd import Beanstalkd
from loadtest.peers.peer import Durability, Peer, Unavailable
from loadtest.peers.redis import Redis

RESERVE_TIMEOUT_S = 60
POLL_S = 0.01
RATE, LATENESS_S = 5_000, 4
SECONDS_TO_ACCEPT_PER_RECORD = 1 / 20_000
"""How far ahead the busy second is put, for each record: slower than this, and the measurement says so."""

_MOVE = (
    b"local d=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,1000) "
    b"if #d>0 then redis.call('ZREM',KEYS[1],unpack(d)) redis.call('RPUSH',KEYS[2],unpack(d)) end return "
)


class _Measured(NamedTuple):
    """A peer, its settings by durability as its users know them, and what is done with it on a port."""

    program: str
    peer: Peer
    settings: dict[Durability, str]
    busy: Callable[[int, int], tuple[float, float]]
    lateness: Callable[[int, int], list[float]]


def peer_rows(directory: Path, count: int) -> list[Row]:
    """Every peer at both levels of durability; a peer that is not installed is a row that says so."""
    rows: list[Row] = []
    redis_settings = {
        Durability.SYNCED: "appendfsync always",
        Durability.UNSYNCED: "appendfsync everysec (default)",
    }
    beanstalkd_settings = {Durability.SYNCED: "-f 0", Durability.UNSYNCED: "-f 50 (default)"}
    for program, peer, settings, busy, lateness in (
        _Measured("redis", Redis(), redis_settings, _redis, _redis_lateness),
        _Measured("beanstalkd", Beanstalkd(), beanstalkd_settings, _beanstalkd, _beanstalkd_lateness),
    ):
        try:
            version = peer.prepare(directory)
        except Unavailable as error:
            rows.append(Row(program, f"not measured: {error}"))
            continue
        for durability, text in settings.items():
            name = f"{program} {version}, {text}"
            is_slow = program == "beanstalkd" and durability is Durability.SYNCED
            its_count, rate = (count // 10, RATE // 10) if is_slow else (count, RATE)
            try:
                with _served(directory, peer, durability, "busy") as port:
                    accepted_per_s, fired_ms = busy(port, its_count)
            except TooSlow as error:
                rows.append(Row(name, f"not measured: {error}"))
                continue
            with _served(directory, peer, durability, "late") as port:
                p50, p99, p999 = percentiles(lateness(port, rate))
            rows.append(
                Row(
                    name,
                    f"accept {accepted_per_s:,.0f}/s; {its_count:,} due in one second, "
                    f"handed on after {fired_ms:,.0f} ms; late at {rate:,}/s: p50 {p50:.0f}, p99 {p99:.0f}, "
                    f"p99.9 {p999:.0f} ms",
                    figures={
                        "accepted_per_s": accepted_per_s,
                        "busy_ms": fired_ms,
                        "late_p50_ms": p50,
                        "late_p99_ms": p99,
                        "late_p99.9_ms": p999,
                    },
                )
            )
    return rows


@contextmanager
def _served(directory: Path, peer: Peer, durability: Durability, work: str) -> Iterator[int]:
    """The port of a server that has nothing yet, until the block ends. Raises Died."""
    root = directory / f"{peer.name}-{durability}-{work}"
    root.mkdir()
    with peer.serve(directory, root, durability) as server:
        yield int(server.endpoint.rpartition(":")[2])


def _redis(port: int, count: int) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        replies = connection.makefile("rb")
        start_ms = int(time.time() + 4 + count * SECONDS_TO_ACCEPT_PER_RECORD) * 1000
        started_s = time.perf_counter()
        _fill(
            connection,
            replies,
            ((start_ms + number * 7919 % 1000, b"%d:" % number + VALUE) for number in range(count)),
        )
        accepted_s = time.perf_counter() - started_s
        if time.time() * 1000 >= start_ms:
            raise TooSlow("the busy second began while it was being filled")
        moved_count = 0
        while moved_count < count:
            found = _move(connection, replies, b"#d")
            moved_count += found
            if not found:
                time.sleep(POLL_S)
        fired_ms = time.time_ns() / 1e6 - start_ms
    return count / accepted_s, fired_ms


def _redis_lateness(port: int, rate: int) -> list[float]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        replies = connection.makefile("rb")
        start_ms = int(time.time() * 1000) + 3000
        count = rate * LATENESS_S
        dues_ms = (start_ms + number * 1000 // rate for number in range(count))
        _fill(
            connection,
            replies,
            ((due_ms, b"%d:%d:" % (due_ms, number) + VALUE) for number, due_ms in enumerate(dues_ms)),
        )
        late_ms: list[float] = []
        while len(late_ms) < count:
            found = _move(connection, replies, b"d")
            now_ms = time.time_ns() / 1e6
            for _ in range(found):
                size = int(replies.readline()[1:])
                late_ms.append(now_ms - int(replies.read(size + 2).partition(b":")[0]))
            if not found:
                time.sleep(POLL_S)
    return late_ms


def _fill(connection: socket.socket, replies: BufferedReader, members: Iterable[tuple[int, bytes]]) -> None:
    """Put members with their due times into the sorted set, a batch at a time."""
    rest = iter(members)
    while some := list(islice(rest, BATCH_RECORDS)):
        parts = [b"ZADD", b"due"]
        for due_ms, member in some:
            parts += [b"%d" % due_ms, member]
        connection.sendall(_resp(parts))
        assert replies.readline() == b":%d\r\n" % len(some)


def _move(connection: socket.socket, replies: BufferedReader, returned: bytes) -> int:
    """Move what is due to the list, at most 1,000; how many those were. `returned` "d": they follow in the reply."""
    now_ms = b"%d" % (time.time_ns() // 1_000_000)
    connection.sendall(_resp([b"EVAL", _MOVE + returned, b"2", b"due", b"ready", now_ms]))
    return int(replies.readline()[1:])


def _beanstalkd_lateness(port: int, rate: int) -> list[float]:
    """Jobs are put as they will be due, one delay of whole seconds before: it knows no other due times."""
    delay_s, step_s = 2, 0.01
    count = rate * LATENESS_S
    with (
        socket.create_connection(("127.0.0.1", port)) as putting,
        socket.create_connection(("127.0.0.1", port)) as taking,
    ):
        taking.settimeout(RESERVE_TIMEOUT_S)

        def put_all() -> None:
            answers = putting.makefile("rb")
            started_s = time.perf_counter()
            put_count = 0
            while put_count < count:
                step = min(count, int((time.perf_counter() - started_s) * rate)) - put_count
                job = b"%d:" % ((time.perf_counter() + delay_s) * 1e6) + VALUE
                putting.sendall(step * (b"put 1 %d 60 %d\r\n%s\r\n" % (delay_s, len(job), job)))
                for _ in range(step):
                    assert answers.readline().startswith(b"INSERTED ")
                put_count += step
                time.sleep(step_s)

        late_ms: list[float] = []
        with ThreadPoolExecutor(1) as threads:
            done = threads.submit(put_all)
            replies = taking.makefile("rb")
            for _ in range(count):
                taking.sendall(b"reserve\r\n")
                _, job_id, size = replies.readline().split()
                due_us = int(replies.read(int(size) + 2).partition(b":")[0])
                late_ms.append(time.perf_counter() * 1000 - due_us / 1000)
                taking.sendall(b"delete %s\r\n" % job_id)
                assert replies.readline() == b"DELETED\r\n"
            done.result()
    return late_ms


def _beanstalkd(port: int, count: int) -> tuple[float, float]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        replies = connection.makefile("rb")
        until_s = time.perf_counter() + 3 + count * SECONDS_TO_ACCEPT_PER_RECORD
        started_s = time.perf_counter()
        last_due_s = 0.0
        for _ in range(0, count, BATCH_RECORDS):
            delay_s = max(1, round(until_s - time.perf_counter()))
            due_s = time.perf_counter() + delay_s
            put = b"put 1 %d 60 %d\r\n%s\r\n" % (delay_s, len(VALUE), VALUE)
            connection.sendall(put * BATCH_RECORDS)
            for _ in range(BATCH_RECORDS):
                assert replies.readline().startswith(b"INSERTED ")
            last_due_s = due_s
        accepted_s = time.perf_counter() - started_s
        done_count = 0
        connection.settimeout(RESERVE_TIMEOUT_S)
        while done_count < count:
            connection.sendall(b"reserve\r\n" * BATCH_RECORDS)
            deletes = []
            for _ in range(BATCH_RECORDS):
                word, job, _ = replies.readline().split()
                assert word == b"RESERVED"
                replies.read(len(VALUE) + 2)
                deletes.append(b"delete %s\r\n" % job)
            connection.sendall(b"".join(deletes))
            for _ in deletes:
                assert replies.readline() == b"DELETED\r\n"
            done_count += BATCH_RECORDS
        # Its seconds are whole: what we call the busy second begins one second before the last job is due.
        fired_ms = (time.perf_counter() - (last_due_s - 1)) * 1000
    return count / accepted_s, fired_ms


def _resp(parts: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
