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

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from loadtest.bench.timer_work import BATCH_RECORDS, VALUE, Row, TooSlow, percentiles
from loadtest.peers.servers import free_port, running

RESERVE_TIMEOUT_S = 60
POLL_S = 0.01
RATE, LATENESS_S = 5_000, 4
SECONDS_TO_ACCEPT_PER_RECORD = 1 / 20_000
"""How far ahead the busy second is put, for each record: slower than this, and the measurement says so."""


def peer_rows(directory: Path, count: int) -> list[Row]:
    """Every peer at both levels of durability; a peer that is not installed is a row that says so."""
    rows: list[Row] = []
    redis_levels = {"appendfsync always": "always", "appendfsync everysec (default)": "everysec"}
    for program, peer, peer_lateness, levels in (
        ("redis-server", _redis, _redis_lateness, redis_levels),
        ("beanstalkd", _beanstalkd, _beanstalkd_lateness, {"-f 0": "0", "-f 50 (default)": "50"}),
    ):
        if shutil.which(program) is None:
            package = "redis-server" if program == "redis-server" else program
            rows.append(Row(program, f"not measured: not installed (apt-get install {package})"))
            continue
        name = f"{program.removesuffix('-server')} {_version(program)}"
        for text, level in levels.items():
            root = directory / f"{program}-{level}"
            root.mkdir()
            its_count = count // 10 if level == "0" else count
            try:
                accepted_per_s, fired_ms = peer(root, its_count, level)
            except TooSlow as error:
                rows.append(Row(f"{name}, {text}", f"not measured: {error}"))
                continue
            rate = RATE // 10 if level == "0" else RATE
            late_root = directory / f"{program}-{level}-late"
            late_root.mkdir()
            p50, p99, p999 = percentiles(peer_lateness(late_root, rate, level))
            rows.append(
                Row(
                    f"{name}, {text}",
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


def _redis(root: Path, count: int, level: str) -> tuple[float, float]:
    arguments = ("--appendonly", "yes", "--appendfsync", level, "--dir", str(root), "--save", "")
    with _process(root, "redis-server", "--port", "{port}", *arguments) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        replies = connection.makefile("rb")
        start_ms = int(time.time() + 4 + count * SECONDS_TO_ACCEPT_PER_RECORD) * 1000
        started_s = time.perf_counter()
        for first in range(0, count, BATCH_RECORDS):
            parts = [b"ZADD", b"due"]
            for number in range(first, first + BATCH_RECORDS):
                parts += [b"%d" % (start_ms + number * 7919 % 1000), b"%d:" % number + VALUE]
            connection.sendall(_resp(parts))
            assert replies.readline() == b":%d\r\n" % BATCH_RECORDS
        accepted_s = time.perf_counter() - started_s
        if time.time() * 1000 >= start_ms:
            raise TooSlow("the busy second began while it was being filled")
        script = (
            b"local d=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,1000) "
            b"if #d>0 then redis.call('ZREM',KEYS[1],unpack(d)) redis.call('RPUSH',KEYS[2],unpack(d)) end return #d"
        )
        moved_count = 0
        while moved_count < count:
            connection.sendall(_resp([b"EVAL", script, b"2", b"due", b"ready", b"%d" % (time.time_ns() // 1_000_000)]))
            found = int(replies.readline()[1:])
            moved_count += found
            if not found:
                time.sleep(POLL_S)
        fired_ms = time.time_ns() / 1e6 - start_ms
        connection.close()
    return count / accepted_s, fired_ms


def _redis_lateness(root: Path, rate: int, level: str) -> list[float]:
    arguments = ("--appendonly", "yes", "--appendfsync", level, "--dir", str(root), "--save", "")
    with _process(root, "redis-server", "--port", "{port}", *arguments) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        replies = connection.makefile("rb")
        start_ms = int(time.time() * 1000) + 3000
        count = rate * LATENESS_S
        for first in range(0, count, BATCH_RECORDS):
            parts = [b"ZADD", b"due"]
            for number in range(first, first + BATCH_RECORDS):
                due_ms = start_ms + number * 1000 // rate
                parts += [b"%d" % due_ms, b"%d:%d:" % (due_ms, number) + VALUE]
            connection.sendall(_resp(parts))
            assert replies.readline() == b":%d\r\n" % BATCH_RECORDS
        script = (
            b"local d=redis.call('ZRANGEBYSCORE',KEYS[1],'-inf',ARGV[1],'LIMIT',0,1000) "
            b"if #d>0 then redis.call('ZREM',KEYS[1],unpack(d)) redis.call('RPUSH',KEYS[2],unpack(d)) end return d"
        )
        late_ms: list[float] = []
        while len(late_ms) < count:
            connection.sendall(_resp([b"EVAL", script, b"2", b"due", b"ready", b"%d" % (time.time_ns() // 1_000_000)]))
            found = int(replies.readline()[1:])
            now_ms = time.time_ns() / 1e6
            for _ in range(found):
                size = int(replies.readline()[1:])
                late_ms.append(now_ms - int(replies.read(size + 2).partition(b":")[0]))
            if not found:
                time.sleep(POLL_S)
        connection.close()
    return late_ms


def _beanstalkd_lateness(root: Path, rate: int, level: str) -> list[float]:
    """Jobs are put as they will be due, one delay of whole seconds before: it knows no other due times."""
    delay_s, step_s = 2, 0.01
    count = rate * LATENESS_S
    with _process(root, "beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-b", str(root), "-f", level) as port:
        putting = socket.create_connection(("127.0.0.1", port))
        taking = socket.create_connection(("127.0.0.1", port))
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
        putting.close()
        taking.close()
    return late_ms


def _beanstalkd(root: Path, count: int, level: str) -> tuple[float, float]:
    with _process(root, "beanstalkd", "-l", "127.0.0.1", "-p", "{port}", "-b", str(root), "-f", level) as port:
        connection = socket.create_connection(("127.0.0.1", port))
        replies = connection.makefile("rb")
        until_s = time.perf_counter() + 3 + count * SECONDS_TO_ACCEPT_PER_RECORD
        started_s = first_due_s = time.perf_counter()
        last_due_s = 0.0
        for first in range(0, count, BATCH_RECORDS):
            delay_s = max(1, round(until_s - time.perf_counter()))
            due_s = time.perf_counter() + delay_s
            first_due_s = due_s if first == 0 else min(first_due_s, due_s)
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
        connection.close()
    return count / accepted_s, fired_ms


def _version(program: str) -> str:
    flag = "--version" if program == "redis-server" else "-v"
    said = subprocess.run([program, flag], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\d+(\.\d+)+", said)
    return found.group() if found else "of unknown version"


@contextmanager
def _process(directory: Path, program: str, *arguments: str) -> Iterator[int]:
    """A server on a free port until the block ends; it logs to `server.log` in the directory. Raises Died."""
    port = free_port()
    command = [program, *(argument.format(port=port) for argument in arguments)]
    with running(f"127.0.0.1:{port}", [command], directory):
        yield port


def _resp(parts: list[bytes]) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
