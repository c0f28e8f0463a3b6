"""What is measured: each kind of work on our server, and the limit it is compared with."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import aiohttp
import orjson

from loadtest.bench.disk import DiskLoop, disk_loop
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE, RECORDS_PER_BATCH, json_body, raw_batch
from loadtest.bench.push_latency import PushPath, bare_push_path, our_push_path
from loadtest.bench.request import LoadClient, Request, RunFailed
from loadtest.bench.scenario import Bench, Comparison, Measures, Scenario, Subject
from loadtest.bench.store_append import store_loop
from loadtest.kernel_cpu import CpuMeter
from loadtest.process import ProcessFailed, Running, running_server, server, started
from store.log.writer import GROUP_BYTES_MAX

CONNECTIONS = 32
PARTITIONS = 4
BATCHES_PER_RAW_REQUEST = 10
STORE_IN_FLIGHT = 32
PULLED_RECORDS = 500_000
"""Stored before pulls are measured: more than the server keeps in memory, so the first ones come from its files."""

PULL_JSON_RECORDS = 1_000
PULL_RAW_BYTES = 1024 * 1024
PUSH_RATES = (500, 2_000)
REQUEST_TIMEOUT_S = 30.0

DURABLE = "ours, durable"
WRITTEN = "ours, written"
WITH_TOKEN = "ours, written, with a token"
BARE = "bare handler"
DISK = "bare disk loop"

Run = Callable[[float], Awaitable[Measures]]


def scenarios() -> list[Scenario]:
    """All scenarios, in the order of the report."""
    return [
        Scenario(
            "single POST",
            f"One JSON record of 85 bytes a request, {CONNECTIONS} keep-alive connections. CPU is what the server's "
            "process takes for a request, all threads, and kernel threads beside it (machine-wide, less what they take "
            "while nothing runs); on a busy machine it says more than the rate.",
            single_post,
            (
                Comparison("POST, one record, durable", DURABLE, BARE, "records_per_s"),
                Comparison("POST, one record, acks=written", WRITTEN, BARE, "records_per_s"),
                Comparison("the same with a token", WITH_TOKEN, WRITTEN, "records_per_s"),
                Comparison("CPU of a POST, durable", DURABLE, BARE, "cpu_us", lower_is_better=True),
                Comparison("CPU of a POST, acks=written", WRITTEN, BARE, "cpu_us", lower_is_better=True),
                Comparison("the same with a token", WITH_TOKEN, WRITTEN, "cpu_us", lower_is_better=True),
            ),
        ),
        Scenario(
            "JSON batch POST",
            f"{RECORDS_PER_BATCH:,} JSON records of 85 bytes a request, {CONNECTIONS} keep-alive connections.",
            json_batch_post,
            (Comparison("POST, 1,000 JSON records, durable", DURABLE, BARE, "records_per_s"),),
        ),
        Scenario(
            "raw batch POST",
            f"{BATCHES_PER_RAW_REQUEST} RecordBatches of {RECORDS_PER_BATCH:,} records a request (1 MB), "
            f"{CONNECTIONS} keep-alive connections. The bare handler reads the body; "
            f"the disk loop writes {GROUP_BYTES_MAX // 2**20} MiB at once, the most that one write of ours has.",
            raw_batch_post,
            (
                Comparison("POST, raw batches, durable", DURABLE, BARE, "records_per_s"),
                Comparison("POST, raw batches, durable", DURABLE, DISK, "records_per_s"),
            ),
        ),
        Scenario(
            "JSON pull",
            f"{PULL_JSON_RECORDS:,} JSON records an answer, {CONNECTIONS} keep-alive connections, from the log's "
            "files (in the page cache). The bare handler sends the same bytes from memory.",
            json_pull,
            (Comparison("pull, 1,000 JSON records", DURABLE, BARE, "records_per_s"),),
        ),
        Scenario(
            "raw pull",
            f"Raw batches, 1 MiB an answer, {CONNECTIONS} keep-alive connections, from the log's files (in the page "
            "cache). The bare handler sends the same bytes from memory.",
            raw_pull,
            (Comparison("pull, raw batches", DURABLE, BARE, "records_per_s"),),
        ),
        Scenario(
            "POST to push",
            "One JSON record a request at a fixed rate, durable, to one WebSocket subscriber; the time from the moment "
            "a record is to be sent until its frame has arrived. The bare server parses it and sends it on.",
            post_to_push,
            tuple(
                Comparison(
                    f"POST to push at {rate:,}/s, {name}",
                    _at_rate(DURABLE, rate),
                    _at_rate(BARE, rate),
                    measure,
                    lower_is_better=True,
                )
                for rate in PUSH_RATES
                for name, measure in (("p50", "p50_ms"), ("p99", "p99_ms"))
            ),
        ),
        Scenario(
            "store append",
            f"The store alone in one process: batches of {RECORDS_PER_BATCH:,} records (103 kB), each waiting for its "
            "fdatasync. The disk loop writes as many batches at once as the store is given.",
            store_append,
            (
                Comparison("store, one batch at a time", _in_flight(DURABLE, 1), _in_flight(DISK, 1), "records_per_s"),
                Comparison(
                    f"store, {STORE_IN_FLIGHT} batches in flight",
                    _in_flight(DURABLE, STORE_IN_FLIGHT),
                    _in_flight(DISK, STORE_IN_FLIGHT),
                    "records_per_s",
                ),
            ),
        ),
    ]


# ---------------------------------------------------------------------------------------------------- sending


@asynccontextmanager
async def single_post(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    request = Request("POST", "/topics/bench", {"Content-Type": JSON_TYPE}, json_body([1]))
    with _directory(bench) as directory:
        bearer = {"Authorization": f"Bearer {_token(directory / 'token')}"}
        with (
            running_bare_server(directory) as bare,
            running_server(directory / "durable") as durable,
            running_server(directory / "written", "--acks", "written") as written,
            running_server(directory / "token", "--acks", "written", "--auth") as guarded,
        ):
            await _create_topic(durable.url)
            await _create_topic(written.url)
            await _create_topic(guarded.url, bearer)
            with_token = replace(request, headers={**request.headers, **bearer})
            yield [
                Subject(BARE, _metered(bench, bare, request)),
                Subject(DURABLE, _metered(bench, durable, request)),
                Subject(WRITTEN, _metered(bench, written, request)),
                Subject(WITH_TOKEN, _metered(bench, guarded, with_token)),
            ]


@asynccontextmanager
async def json_batch_post(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    request = Request("POST", "/topics/bench", {"Content-Type": JSON_TYPE}, json_body(range(RECORDS_PER_BATCH)))
    with _directory(bench) as directory, bare_server(directory) as bare, server(directory / "durable") as durable:
        await _create_topic(durable)
        yield [
            Subject(BARE, _load(bench.client, bare, request, record_count=RECORDS_PER_BATCH)),
            Subject(DURABLE, _load(bench.client, durable, request, record_count=RECORDS_PER_BATCH)),
        ]


@asynccontextmanager
async def raw_batch_post(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    batches = [raw_batch(range(first, first + RECORDS_PER_BATCH)) for first in range(BATCHES_PER_RAW_REQUEST)]
    request = Request("POST", "/topics/bench", {"Content-Type": BATCH_TYPE}, b"".join(batches))
    count = len(batches) * RECORDS_PER_BATCH
    merged = min(CONNECTIONS, GROUP_BYTES_MAX // len(request.body))
    with (
        _directory(bench) as directory,
        bare_server(directory) as bare,
        server(directory / "durable") as durable,
        disk_loop(directory) as disk,
    ):
        await _create_topic(durable)
        yield [
            Subject(BARE, _load(bench.client, bare, request, record_count=count)),
            Subject(DURABLE, _load(bench.client, durable, request, record_count=count)),
            Subject(DISK, _disk(disk, batches * merged, record_count=count * merged)),
        ]


# ---------------------------------------------------------------------------------------------------- pulling


@asynccontextmanager
async def json_pull(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    target = f"/topics/bench/partitions/0/records?offset=0&max_records={PULL_JSON_RECORDS}"
    async with _pulling(bench, Request("GET", target, {"Accept": JSON_TYPE})) as subjects:
        yield subjects


@asynccontextmanager
async def raw_pull(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    target = f"/topics/bench/partitions/0/records?offset=0&max_bytes={PULL_RAW_BYTES}"
    async with _pulling(bench, Request("GET", target, {"Accept": BATCH_TYPE})) as subjects:
        yield subjects


@asynccontextmanager
async def _pulling(bench: Bench, request: Request) -> AsyncIterator[Sequence[Subject]]:
    """One pull from us, and its answer from a bare handler that has it in memory."""
    with _directory(bench) as directory, server(directory / "durable") as durable, bare_server(directory) as bare:
        await _create_topic(durable)
        await _fill(durable)
        async with _session() as session:
            async with session.get(durable + request.target, headers=request.headers) as response:
                response.raise_for_status()
                answer = await response.read()
                record_count = int(response.headers["Mq-Next-Offset"])
            async with session.put(f"{bare}/fixed", data=answer) as response:
                response.raise_for_status()
        fixed = Request("GET", "/fixed", request.headers)
        yield [
            Subject(BARE, _load(bench.client, bare, fixed, record_count=record_count)),
            Subject(DURABLE, _load(bench.client, durable, request, record_count=record_count)),
        ]


async def _fill(url: str) -> None:
    """Put PULLED_RECORDS into partition 0."""
    batch = raw_batch(range(RECORDS_PER_BATCH)) * BATCHES_PER_RAW_REQUEST
    async with _session() as session:
        for _ in range(PULLED_RECORDS // (RECORDS_PER_BATCH * BATCHES_PER_RAW_REQUEST)):
            await _post(session, f"{url}/topics/bench/partitions/0", batch, BATCH_TYPE)


# --------------------------------------------------------------------------------------------- pushing, storing


@asynccontextmanager
async def post_to_push(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    headers = {"Content-Type": JSON_TYPE}
    with _directory(bench) as directory, server(directory / "durable") as durable, bare_server(directory) as bare:
        await _create_topic(durable)
        async with (
            _session() as session,
            our_push_path(session, durable, headers) as ours,
            bare_push_path(session, bare, headers) as limit,
        ):
            yield [
                Subject(_at_rate(name, rate), _push(path, rate))
                for rate in PUSH_RATES
                for name, path in ((BARE, limit), (DURABLE, ours))
            ]


@asynccontextmanager
async def store_append(bench: Bench) -> AsyncIterator[Sequence[Subject]]:
    batch = raw_batch(range(RECORDS_PER_BATCH))
    with _directory(bench) as directory, disk_loop(directory) as disk:
        async with store_loop(directory / "store") as store:

            def append(in_flight: int) -> Run:
                async def run(duration_s: float) -> Measures:
                    records_per_s = await store.run(
                        batch, RECORDS_PER_BATCH, in_flight=in_flight, duration_s=duration_s
                    )
                    return {
                        "records_per_s": records_per_s,
                        "bytes_per_s": records_per_s / RECORDS_PER_BATCH * len(batch),
                    }

                return run

            yield [
                subject
                for count in (1, STORE_IN_FLIGHT)
                for subject in (
                    Subject(
                        _in_flight(DISK, count), _disk(disk, [batch] * count, record_count=count * RECORDS_PER_BATCH)
                    ),
                    Subject(_in_flight(DURABLE, count), append(count)),
                )
            ]


def _at_rate(name: str, rate: int) -> str:
    return f"{name}, {rate:,}/s"


def _in_flight(name: str, count: int) -> str:
    return f"{name}, {count} in flight"


# ---------------------------------------------------------------------------------------------------- subjects


def _load(client: LoadClient, url: str, request: Request, *, record_count: int) -> Run:
    """Load by one request; `record_count` records go with each."""

    async def run(duration_s: float) -> Measures:
        load = await client.drive(url, request, connections=CONNECTIONS, duration_s=duration_s)
        if load.error_count or not load.request_count:
            raise RunFailed(f"{load.error_count} of {load.error_count + load.request_count} answers were not 200")
        requests_per_s = load.request_count / load.duration_s
        return {
            "records_per_s": requests_per_s * record_count,
            "requests_per_s": requests_per_s,
            "request_count": load.request_count,
            "p50_ms": load.p50_ms,
            "p99_ms": load.p99_ms,
        }

    return run


def _disk(disk: DiskLoop, buffers: list[bytes], *, record_count: int) -> Run:
    """Write buffers that hold `record_count` records."""

    async def run(duration_s: float) -> Measures:
        written = await asyncio.to_thread(disk.run, buffers, duration_s)
        return {
            "records_per_s": written.sync_count * record_count / written.duration_s,
            "bytes_per_s": written.byte_count / written.duration_s,
            "sync_ms": written.duration_s / written.sync_count * 1000,
        }

    return run


def _metered(bench: Bench, running: Running, request: Request) -> Run:
    """As `_load`, one record a request, with the CPU time that each takes: `cpu_us` of the server's process and of
    kernel threads together, `kernel_us` of kernel threads alone."""
    load = _load(bench.client, running.url, request, record_count=1)

    async def run(duration_s: float) -> Measures:
        meter = CpuMeter(running.cpu_s, bench.idle_share)
        measures = await load(duration_s)
        process_s, kernel_s = meter.taken_s()
        count = measures["request_count"]
        return {**measures, "cpu_us": (process_s + kernel_s) / count * 1e6, "kernel_us": kernel_s / count * 1e6}

    return run


def _push(path: PushPath, rate: int) -> Run:
    async def run(duration_s: float) -> Measures:
        latency = await path.run(rate, duration_s)
        return {"p50_ms": latency.p50_ms, "p99_ms": latency.p99_ms, "max_ms": latency.max_ms}

    return run


# ------------------------------------------------------------------------------------------------ small helpers


@contextmanager
def bare_server(directory: Path) -> Iterator[str]:
    """The limit of an HTTP server, in a process of its own; its URL."""
    with running_bare_server(directory) as running:
        yield running.url


@contextmanager
def running_bare_server(directory: Path) -> Iterator[Running]:
    """As `bare_server`, with its process."""
    with started([sys.executable, "-m", "loadtest.bench.bare_server"], directory / "bare.log") as running:
        yield running


def _token(data: Path) -> str:
    """A token for the server of a data directory, which may do everything. Raises ProcessFailed."""
    command = [sys.executable, "-m", "gateway", "token", "create", "bench", "--allow", "admin", "--data", str(data)]
    data.mkdir()
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ProcessFailed(f"no token was made: {made.stderr.strip()[-500:]}")
    return made.stdout.strip()


@contextmanager
def _directory(bench: Bench) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=bench.directory) as directory:
        yield Path(directory)


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S))


async def _create_topic(url: str, headers: Mapping[str, str] | None = None) -> None:
    shape = {"partitions": PARTITIONS}
    async with (
        _session() as session,
        session.put(f"{url}/mq/v1/topics/bench", json=shape, headers=headers) as response,
    ):
        response.raise_for_status()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes, content_type: str) -> None:
    async with session.post(url, data=body, headers={"Content-Type": content_type}) as response:
        if response.status != 200:
            raise RunFailed(orjson.loads(await response.read())["message"])
