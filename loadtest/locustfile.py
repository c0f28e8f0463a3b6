"""Users of a running server, for Locust, and their own checks of what the server promises.

    locust -f loadtest/locustfile.py --headless -u 20 -r 10 -t 20s --host http://127.0.0.1:8082

    SingleSender, BatchSender, DelayedSender     send records, each with an identity, over HTTP
    LongPoller, SocketReader                     read them, over HTTP long polls and over a WebSocket

While it runs, the readers check that the records of every key come in the order in which they were sent, and that
delayed records are never early and not very late. When it has ended, an audit reads the whole run once more: every
acknowledged record must be there, once. A check that fails is a Locust failure of type CHECK, so that Locust's table,
its CSV and its exit code show it. With several workers, each checks what its own users sent.
"""

from __future__ import annotations

import http.client
import itertools
import random
import secrets
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol, TypedDict, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import orjson
import websocket
from locust import FastHttpUser, User, between, constant, events, task
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner
from locust.stats import CSV_STATS_INTERVAL_SEC

from loadtest.checks import Deliveries, KeyOrder

TOPIC = "locust"
TOPIC_PATH = f"/mq/v1/topics/{TOPIC}"
PARTITIONS = 4
BATCH_RECORDS = 100
DELAYED_RECORDS = 20
DELAY_MIN_MS, DELAY_MAX_MS = 50, 3_000
LATE_MAX_MS = 1_000
"""A delayed record that is later than this has failed, however loaded the machine is."""

POLL_MS = 1_000
POLL_RECORDS = 1_000
CREDIT = 5_000
SOCKET_TIMEOUT_S = 2.0
AUDIT_STALL_S = 10.0
"""The audit gives a record up for lost when nothing has arrived for so long; longer than any delay."""

REQUEST_TIMEOUT_S = 30.0
JSON_RECORDS = {"Content-Type": "application/vnd.kafka.json.v2+json"}
READ_JSON = {"Accept": "application/vnd.kafka.json.v2+json"}


class Value(TypedDict):
    """The value of every record: whose it is, and which of its sender's."""

    run: str
    sender: int
    sequence: int


class Message(TypedDict, total=False):
    """What the checks use of a message. Times are epoch ms; `deliver_at` is there when the record was delayed."""

    key: str
    value: Value
    partition: int
    offset: int
    store_timestamp: int
    deliver_at: int


class RecordId(NamedTuple):
    """The identity of a record within one run."""

    sender: int
    sequence: int


class CheckFailed(Exception):
    """The server broke a promise."""


class RequestEvent(Protocol):
    """Locust's `events.request.fire`, as far as it is used here."""

    def __call__(
        self,
        *,
        request_type: str,
        name: str,
        response_time: float,
        response_length: int,
        exception: Exception | None,
        context: dict[str, object],
    ) -> None: ...


class Run:
    """One run of this process: what its users have sent, and where the topic stood before."""

    def __init__(self, environment: Environment) -> None:
        if environment.host is None:
            raise ValueError("give the server's URL: --host http://127.0.0.1:8082")
        self.host = environment.host.rstrip("/")
        self.name = secrets.token_hex(4)
        self.deliveries: Deliveries[RecordId] = Deliveries()
        self._fire = cast(RequestEvent, environment.events.request.fire)
        self._senders = itertools.count()
        self.start_offsets: dict[str, int] = {}

    def prepare(self) -> None:
        """Make the topic where it is missing, and note where it ends."""
        _request(self.host, "PUT", TOPIC_PATH, {"partitions": PARTITIONS})
        self.start_offsets = self._end_offsets()

    def _end_offsets(self) -> dict[str, int]:
        """Where each partition ends now."""
        described = _request(self.host, "GET", TOPIC_PATH, None)
        return {str(bounds["partition"]): bounds["end_offset"] for bounds in described["offsets"]}

    def next_sender(self) -> int:
        return next(self._senders)

    def value(self, record: RecordId) -> Value:
        return {"run": self.name, "sender": record.sender, "sequence": record.sequence}

    def key(self, sender: int) -> str:
        return f"{self.name}-{sender}"

    def report(self, kind: str, name: str, *, took_ms: float, size: int = 0, problem: str | None = None) -> None:
        """One line of Locust's statistics; with a problem, one of its failures."""
        exception = None if problem is None else CheckFailed(problem)
        self._fire(
            request_type=kind, name=name, response_time=took_ms, response_length=size, exception=exception, context={}
        )

    def audit(self) -> None:
        """Read the whole run from the log once more and check it as a whole."""
        began_s = time.monotonic()
        try:
            problem = self._read_all()
        except (CheckFailed, OSError, websocket.WebSocketException) as error:
            problem = f"the audit could not read the log: {str(error) or type(error).__name__}"
        took_ms = (time.monotonic() - began_s) * 1000
        sent_count, duplicate_count = self.deliveries.sent_count, self.deliveries.duplicate_count
        lost = sorted(self.deliveries.lost)
        losses = f"{len(lost)} of {sent_count} lost, such as {lost[:3]}" if lost else None
        duplicates = f"{duplicate_count} of {sent_count} came twice" if duplicate_count else None
        self.report("CHECK", "every acknowledged record is there", took_ms=took_ms, problem=losses)
        self.report("CHECK", "every record is there once", took_ms=took_ms, problem=duplicates)
        self.report("CHECK", "the log keeps the order of every key", took_ms=took_ms, problem=problem)

    def _read_all(self) -> str | None:
        """Read until nothing is missing and then to the end, for duplicates; the first record out of order."""
        order = KeyOrder()
        problem = None
        places = dict(self.start_offsets)
        ends: dict[str, int] | None = None
        with Socket(self.host) as socket:
            socket.subscribe({TOPIC: places})
            last_arrival_s = time.monotonic()
            while time.monotonic() - last_arrival_s < AUDIT_STALL_S:
                if ends is None and self.deliveries.is_complete:
                    ends = self._end_offsets()
                if ends is not None and all(places[partition] >= end for partition, end in ends.items()):
                    break
                for message in socket.messages():
                    last_arrival_s = time.monotonic()
                    places[str(message["partition"])] = message["offset"] + 1
                    record = self.own(message)
                    if record is None:
                        continue
                    self.deliveries.received(record)
                    if "deliver_at" not in message:
                        problem = problem or order.received(message["key"], record.sequence)
        return problem

    def own(self, message: Message) -> RecordId | None:
        """The identity of a record of this run; None for what others sent."""
        value = message["value"]
        return RecordId(value["sender"], value["sequence"]) if value["run"] == self.name else None


_RUNS: WeakKeyDictionary[Environment, Run] = WeakKeyDictionary()
"""The run of each Locust environment: Locust hands listeners and users nothing else to share."""


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def begin(environment: Environment, **_: object) -> None:
    """Prepare the run. The master of several workers has no users, so none of its own."""
    if not isinstance(environment.runner, MasterRunner):
        run = Run(environment)
        run.prepare()
        _RUNS[environment] = run


@events.test_stop.add_listener  # type: ignore[untyped-decorator]
def end(environment: Environment, **_: object) -> None:
    """All users have stopped: audit what they sent."""
    run = _RUNS.pop(environment, None)
    if run is not None and run.deliveries.sent_count:
        run.audit()
        if environment.parsed_options is not None and environment.parsed_options.csv_prefix:
            time.sleep(2 * CSV_STATS_INTERVAL_SEC)  # Locust writes its files now and then, and not at its end


# -------------------------------------------------------------------------------------------------------- senders


class Sender(FastHttpUser):
    """Sends records of its own key one request after the other, so their order is known."""

    abstract = True
    network_timeout = REQUEST_TIMEOUT_S

    def on_start(self) -> None:
        self.run_ = _RUNS[self.environment]
        self.sender = self.run_.next_sender()
        self.sequences = itertools.count()

    def send(self, count: int, name: str, *, delayed: bool = False) -> None:
        """Send `count` records in one request. Only a 200 makes them acknowledged."""
        records = [RecordId(self.sender, next(self.sequences)) for _ in range(count)]
        sent = [self._record(record, delayed) for record in records]
        response = self.client.post(
            f"/topics/{TOPIC}", data=orjson.dumps({"records": sent}).decode(), headers=JSON_RECORDS, name=name
        )
        if response.status_code == 200:
            self.run_.deliveries.sent(records)

    def _record(self, record: RecordId, delayed: bool) -> dict[str, object]:
        made: dict[str, object] = {"key": self.run_.key(self.sender), "value": self.run_.value(record)}
        if delayed:
            made["delay_ms"] = random.randint(DELAY_MIN_MS, DELAY_MAX_MS)
        return made


class SingleSender(Sender):
    """One record a request."""

    weight = 4
    wait_time = between(0.005, 0.02)

    @task
    def send_one(self) -> None:
        self.send(1, "send 1")


class BatchSender(Sender):
    """Many records a request."""

    weight = 2
    wait_time = between(0.05, 0.15)

    @task
    def send_batch(self) -> None:
        self.send(BATCH_RECORDS, f"send {BATCH_RECORDS}")


class DelayedSender(Sender):
    """Records that fall due within seconds."""

    weight = 1
    wait_time = between(0.1, 0.3)

    @task
    def send_delayed(self) -> None:
        self.send(DELAYED_RECORDS, f"send {DELAYED_RECORDS} delayed", delayed=True)


# -------------------------------------------------------------------------------------------------------- readers


class Watch:
    """What a reader checks of the messages it gets."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._order = KeyOrder()

    def take(self, messages: list[Message]) -> None:
        """Check messages in the order in which they came. Those of other runs are none of ours."""
        for message in messages:
            record = self._run.own(message)
            if record is None:
                continue
            if "deliver_at" in message:
                self._check_time(message["store_timestamp"] - message["deliver_at"])
            elif (wrong := self._order.received(message["key"], record.sequence)) is not None:
                self._run.report("CHECK", "order of a key", took_ms=0, problem=wrong)

    def _check_time(self, late_ms: int) -> None:
        """Every delayed record is a line: "response time" is how late it was."""
        problem = None
        if late_ms < 0:
            problem = "a delayed record was early"
        elif late_ms > LATE_MAX_MS:
            problem = f"a delayed record was more than {LATE_MAX_MS} ms late"
        self._run.report("CHECK", "lateness of delayed records", took_ms=max(late_ms, 0), problem=problem)


class LongPoller(FastHttpUser):
    """Follows one partition over HTTP."""

    weight = 1
    wait_time = constant(0)
    network_timeout = REQUEST_TIMEOUT_S

    def on_start(self) -> None:
        run = _RUNS[self.environment]
        self.watch = Watch(run)
        self.partition = random.randrange(PARTITIONS)
        self.offset = run.start_offsets[str(self.partition)]

    @task
    def poll(self) -> None:
        query = f"offset={self.offset}&timeout={POLL_MS}&max_records={POLL_RECORDS}"
        path = f"/topics/{TOPIC}/partitions/{self.partition}/records?{query}"
        response = self.client.get(path, headers=READ_JSON, name="long poll")
        if response.status_code == 200:
            self.watch.take(orjson.loads(response.content or b"[]"))
            self.offset = int(cast(Mapping[str, str], response.headers)["Mq-Next-Offset"])


class SocketReader(User):
    """Follows all partitions over a WebSocket. "Response time" is from the store to the arrival of the last message."""

    weight = 2
    wait_time = constant(0)

    def on_start(self) -> None:
        self.run_ = _RUNS[self.environment]
        self.watch = Watch(self.run_)
        self.socket = Socket(self.run_.host)
        self.socket.subscribe({TOPIC: self.run_.start_offsets})

    def on_stop(self) -> None:
        self.socket.close()

    @task
    def read(self) -> None:
        try:
            messages = list(self.socket.messages())
        except (CheckFailed, OSError, websocket.WebSocketException) as error:
            self.run_.report("WS", "messages", took_ms=0, problem=str(error) or type(error).__name__)
            raise StopUser from error
        if messages:
            now_ms = time.time_ns() // 1_000_000
            took_ms = max(now_ms - messages[-1]["store_timestamp"], 0)
            self.run_.report("WS", "messages", took_ms=took_ms, size=len(messages))
            self.watch.take(messages)


class Socket:
    """A subscription over a WebSocket, one frame at a time; its credit returns by itself."""

    def __init__(self, host: str) -> None:
        """Connect. Raises OSError or WebSocketException."""
        url = "ws" + host.removeprefix("http") + "/ws/v1"
        self._socket = websocket.create_connection(url, timeout=SOCKET_TIMEOUT_S)

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def subscribe(self, start: dict[str, dict[str, int]]) -> None:
        """Follow topics from these offsets. Raises CheckFailed when the server refuses."""
        subscribe = {"id": 1, "op": "subscribe", "sub": "s", "topics": list(start), "from": start, "credit": CREDIT}
        self._socket.send(orjson.dumps(subscribe))
        answer = orjson.loads(self._socket.recv())
        if not answer["ok"]:
            raise CheckFailed(answer["message"])

    def messages(self) -> Iterator[Message]:
        """The messages of the next frame; none when it has none, or when none comes for a while."""
        try:
            frame = self._socket.recv()
        except websocket.WebSocketTimeoutException:
            return
        if not frame:
            raise CheckFailed("the server closed the socket")
        push = orjson.loads(frame)
        if push["op"] in ("error", "goaway"):
            raise CheckFailed(f"the server ended the subscription: {push}")
        yield from push.get("messages", ())


class _Bounds(TypedDict):
    partition: int
    end_offset: int


class _Described(TypedDict):
    offsets: list[_Bounds]


def _request(host: str, method: str, path: str, body: object) -> _Described:
    """One request outside Locust's statistics. Raises OSError, or CheckFailed when it is refused."""
    parts = urlsplit(host)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=REQUEST_TIMEOUT_S)
    try:
        headers = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else orjson.dumps(body), headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status >= 400:
        raise CheckFailed(f"{method} {path}: {response.status} {content.decode(errors='replace')}")
    answer: _Described = orjson.loads(content)
    return answer
