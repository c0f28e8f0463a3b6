"""One run: its name, its topic and groups, and what this process knows of it.

Every run has a topic and groups of its own, so that nothing of others is in them and they can be deleted afterwards.
All processes of a run know its name; senders are numbered by chance, so they need not agree on numbers.
"""

from __future__ import annotations

import http.client
import secrets
from collections.abc import Mapping
from typing import Any, Protocol, TypedDict, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import orjson
from locust.env import Environment

from loadtest.load.ledger import Ledger, RecordId
from loadtest.load.metrics import Metrics

PARTITIONS = 4
LATE_MAX_MS = 1_000
"""A delayed record that is later than this has failed, however loaded the machine is."""

REQUEST_TIMEOUT_S = 30.0


class Value(TypedDict):
    """The value of every record: whose it is, and which of its sender's."""

    sender: str
    sequence: int


class Message(TypedDict, total=False):
    """What the checks use of a message. Times are epoch ms; `deliver_at` is there when the record was delayed."""

    key: str
    value: Value
    partition: int
    offset: int
    store_timestamp: int
    deliver_at: int
    receipt: str
    attempt: int


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
    """One run, as one process sees it."""

    def __init__(self, environment: Environment, name: str) -> None:
        if not environment.host:
            raise ValueError("give the server's URL: --host http://127.0.0.1:8082")
        self.host = environment.host.rstrip("/")
        self.name = name
        self.topic = f"load-{name}"
        self.ledger = Ledger()
        self.metrics = Metrics()
        self.ways: set[str] = set()
        """In which ways users of this run consume in groups: what has to be audited."""

        self._fire = cast(RequestEvent, environment.events.request.fire)

    def group(self, way: str) -> str:
        """The group of all users that consume in this way."""
        return f"{self.topic}-{way}"

    def prepare(self) -> None:
        """Make the topic. Raises CheckFailed, OSError."""
        self.request("PUT", f"/mq/v1/topics/{self.topic}", {"partitions": PARTITIONS})

    def clean(self) -> None:
        """Delete the topic and the groups."""
        for way in sorted(self.ways):
            self.request("DELETE", f"/mq/v1/groups/{self.group(way)}", None)
        self.request("DELETE", f"/mq/v1/topics/{self.topic}", None)

    def end_offsets(self) -> dict[int, int]:
        """Where each partition ends now."""
        described = self.request("GET", f"/mq/v1/topics/{self.topic}", None)
        return {bounds["partition"]: bounds["end_offset"] for bounds in described["offsets"]}

    def report(self, kind: str, name: str, *, took_ms: float, size: int = 0, problem: str | None = None) -> None:
        """One line of Locust's statistics; with a problem, one of its failures."""
        exception = None if problem is None else CheckFailed(problem)
        self._fire(
            request_type=kind, name=name, response_time=took_ms, response_length=size, exception=exception, context={}
        )

    def check_time(self, message: Message) -> None:
        """A delayed record is a line: "response time" is how late it was stored. Never early; not very late."""
        late_ms = message["store_timestamp"] - message["deliver_at"]
        problem = None
        if late_ms < 0:
            problem = "a delayed record was early"
        elif late_ms > LATE_MAX_MS:
            problem = f"a delayed record was more than {LATE_MAX_MS} ms late"
        self.report("CHECK", "lateness of delayed records", took_ms=max(late_ms, 0), problem=problem)
        self.metrics.count("delayed")
        self.metrics.time("late", late_ms)

    def request(self, method: str, path: str, body: object) -> Mapping[str, Any]:
        """One request outside Locust's statistics. Raises OSError, or CheckFailed when it is refused."""
        parts = urlsplit(self.host)
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
        answer: Mapping[str, Any] = orjson.loads(content) if content else {}
        return answer


def new_name() -> str:
    """A name that no other run has."""
    return secrets.token_hex(4)


def identity(message: Message) -> RecordId:
    """Which record of the run a message is."""
    return RecordId(message["value"]["sender"], message["value"]["sequence"])


RUNS: WeakKeyDictionary[Environment, Run] = WeakKeyDictionary()
"""The run of each Locust environment: Locust hands users nothing else to share."""
