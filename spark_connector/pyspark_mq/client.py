"""The server over HTTP: what topics hold, and record batches as they are stored, in both directions.

Uses only the standard library, so that nothing but this package has to be on the executors. All requests are reads,
or sends whose headers let the server tell a repeat, so each may be repeated: a broken connection, a time-out or a
temporary refusal is tried again, with growing pauses, until `retry_timeout_ms` has passed since the first attempt, at
each of the given URLs in turn. So neither one lost packet nor a restart of the server kills a query.

TLS: the CA's certificates travel as text (`Endpoint.ca_pem`), so no executor needs the file.

Idle connections are kept per process and server (`ConnectionPool`): Spark's Python workers live on from task to task.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from pyspark_mq.errors import MqError, NotFound, OutOfRange, ServerError, ServerUnavailable
from pyspark_mq.offsets import Bounds, TopicState, find_gaps

log = logging.getLogger(__name__)

BATCH_MEDIA_TYPE = "application/vnd.mq.batch"
JSON_MEDIA_TYPE = "application/vnd.kafka.binary.v2+json"

REQUEST_TIMEOUT_MS = 30_000
RETRY_TIMEOUT_MS = 60_000
PAUSE_FIRST_S = 0.1
PAUSE_LONGEST_S = 5.0
IDLE_CONNECTIONS_MAX = 4
"""Connections kept for one server by one process; a task needs one at a time."""

_T = TypeVar("_T")

_TEMPORARY = frozenset({408, 425, 429, 502, 503, 504})
"""Statuses worth another attempt when the body does not say `retriable`, as from a proxy."""

_NOT_FOUND = frozenset({40401, 40402, 40403})
"""Error codes for an unknown topic or partition. A 404 with another one comes from something that is not our server:
it must not be taken for a deleted topic."""

_GROUP_NOT_FOUND = 40405

_HINTS = {
    42950: "The server remembers as many producers or ids of sends as it may, so that it knows repeats. Write from "
    "fewer Spark partitions (coalesce), or raise store.producers_max and store.dedup_ids_max of the server.",
}
"""What to do, by error code, when a temporary refusal does not pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """How to reach the server. `urls` are bases such as `http://host:8082`, tried in order."""

    urls: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    ca_pem: str | None = field(default=None, repr=False)
    """Certificates of the authorities to trust, and no others; None: those this machine trusts."""

    request_timeout_ms: int = REQUEST_TIMEOUT_MS
    retry_timeout_ms: int = RETRY_TIMEOUT_MS


class Fetched(NamedTuple):
    """Whole record batches from the one holding the asked offset on, and the partition's bounds at that moment."""

    body: bytes
    next_offset: int
    bounds: Bounds
    epoch: str


class Appended(NamedTuple):
    """What became of a batch. `is_known`: the server says where it is. Of an old repeat it does not know: it takes any
    number below those it remembers for one."""

    is_repeat: bool
    is_known: bool


class _Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None = None


class _Reply(NamedTuple):
    body: bytes
    headers: http.client.HTTPMessage


class _Temporary(Exception):
    """A refusal that may be gone at the next attempt."""

    def __init__(self, message: str, pause_s: float, hint: str) -> None:
        super().__init__(message)
        self.pause_s = pause_s
        self.hint = hint


class ConnectionPool:
    """Idle connections by server. Not shared with a forked child, and empty after pickling."""

    def __init__(self) -> None:
        self._idle: dict[tuple[int, str, str | None], list[http.client.HTTPConnection]] = {}

    def __reduce__(self) -> tuple[type[ConnectionPool], tuple[()]]:
        return ConnectionPool, ()

    def take(self, base: str, timeout_s: float, ca_pem: str | None) -> tuple[http.client.HTTPConnection, bool]:
        """A connection to use alone, and whether it has been used before (so that the server may have closed it)."""
        idle = self._idle.get((os.getpid(), base, ca_pem))
        if idle:
            try:
                connection = idle.pop()
            except IndexError:  # another thread was faster
                return _connect(base, timeout_s, ca_pem), False
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
                return connection, True
        return _connect(base, timeout_s, ca_pem), False

    def give_back(self, base: str, ca_pem: str | None, connection: http.client.HTTPConnection) -> None:
        """Keep a connection whose response has been read to its end."""
        idle = self._idle.setdefault((os.getpid(), base, ca_pem), [])
        if len(idle) < IDLE_CONNECTIONS_MAX:
            idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Close the idle connections. The pool can be used on."""
        idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()


PROCESS_POOL = ConnectionPool()
"""What clients use unless they are given another."""


def _connect(base: str, timeout_s: float, ca_pem: str | None) -> http.client.HTTPConnection:
    parts = urlsplit(base)
    assert parts.hostname is not None, "options.py lets only URLs with a host pass"
    if parts.scheme == "https":
        context = ssl.create_default_context(cadata=ca_pem)
        return http.client.HTTPSConnection(parts.hostname, parts.port, timeout=timeout_s, context=context)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)


class Client:
    """One server (or several that are equal). For one thread; make one where it is used.

    Every method raises ServerUnavailable when the server cannot be reached for `retry_timeout_ms`, and ServerError
    when it refuses for good.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        pool: ConnectionPool | None = None,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint = endpoint
        self._pool = PROCESS_POOL if pool is None else pool
        self._sleep = sleep
        self._monotonic = monotonic
        self._base_index = 0
        self._gaps: dict[tuple[str, str, int], tuple[tuple[int, int], ...]] = {}

    def topic_names(self) -> list[str]:
        """Names of all topics."""
        reply = self._get("/mq/v1/topics")
        topics = _field(self._json(reply), "topics", list)
        return [_field(topic, "topic", str) for topic in topics]

    def topic(self, topic: str) -> TopicState:
        """Epoch and bounds of a topic, from one moment, and the gaps of partitions that were taken over. Raises
        NotFound."""
        document = self._json(self._get(f"/mq/v1/topics/{quote(topic, safe='')}/offsets"))
        epoch = _field(document, "epoch", str)
        partitions = {}
        for row in _field(document, "partitions", list):
            number = _field(row, "partition", int)
            beginning, end = _field(row, "beginning_offset", int), _field(row, "end_offset", int)
            partitions[number] = Bounds(beginning, end, self._gaps_of((topic, epoch, number), beginning, end))
        return TopicState(epoch, partitions)

    def _gaps_of(self, of: tuple[str, str, int], beginning: int, end: int) -> tuple[tuple[int, int], ...]:
        """The gaps of a partition; one that was found stays what it is."""
        known = self._gaps.get(of, ())
        topic, _, partition = of
        behind = known[-1][1] if known else beginning
        found = (*known, *find_gaps(behind, end, partial(self._first_from, topic, partition, end)))
        if found:
            self._gaps[of] = found
        return found

    def _first_from(self, topic: str, partition: int, end: int, offset: int) -> int:
        """The first offset from one on that has a record; what is behind the last one, when none has."""
        fetched = self.fetch(topic, partition, offset, end_offset=end, max_bytes=1)
        if not fetched.body:
            return fetched.next_offset
        return max(
            offset, int.from_bytes(fetched.body[:8], "big")
        )  # a batch begins with the offset of its first record

    def offsets_for_time(self, topic: str, time_ms: int) -> dict[int, int | None]:
        """By partition, the offset of the first record stored at or after a time; None when there is none."""
        path = f"/mq/v1/topics/{quote(topic, safe='')}/offsets?{urlencode({'timestamp': time_ms})}"
        found: dict[int, int | None] = {}
        for partition in _field(self._json(self._get(path)), "partitions", list):
            offset = partition.get("offset_for_time")
            known = isinstance(offset, int) and offset < _field(partition, "end_offset", int)
            found[_field(partition, "partition", int)] = offset if known else None
        return found

    def fetch(self, topic: str, partition: int, offset: int, *, end_offset: int, max_bytes: int) -> Fetched:
        """Whole batches from the one holding `offset` on: at least one if there is any, then up to `max_bytes`.

        The first batch may begin before `offset` and the last may go past `end_offset`. Raises NotFound, OutOfRange.
        """
        query = urlencode({"offset": offset, "end_offset": end_offset, "max_bytes": max_bytes, "timeout": 0})
        path = f"/topics/{quote(topic, safe='')}/partitions/{partition}/records?{query}"
        reply = self._get(path, accept=BATCH_MEDIA_TYPE)
        headers = reply.headers
        try:
            return Fetched(
                reply.body,
                int(headers["Mq-Next-Offset"]),
                Bounds(int(headers["Mq-Beginning-Offset"]), int(headers["Mq-End-Offset"])),
                headers["Mq-Epoch"] or "",
            )
        except (TypeError, ValueError) as error:
            raise MqError(f"{self._base}{path} answered without the headers of an mq server: {error}") from error

    def send_batch(self, topic: str, partition: int, batch: bytes, identity: Mapping[str, str]) -> Appended:
        """Append one batch; durable on return. A repeat, by the `identity` headers, is not stored again."""
        path = f"/topics/{quote(topic, safe='')}/partitions/{partition}"
        reply = self._post(path, batch, {"Content-Type": BATCH_MEDIA_TYPE, **identity})
        receipts = self._receipts(reply)
        return Appended(
            any(receipt.get("duplicate") for receipt in receipts),
            all(receipt.get("offset") is not None for receipt in receipts),
        )

    def send_json(self, topic: str, body: bytes, identity: Mapping[str, str]) -> int:
        """Send records as JSON with base64; durable on return. How many of them are repeats, and were there."""
        reply = self._post(f"/topics/{quote(topic, safe='')}", body, {"Content-Type": JSON_MEDIA_TYPE, **identity})
        return sum(bool(receipt.get("duplicate")) for receipt in self._receipts(reply))

    def move_group(self, group: str, topic: str, partition: int, offset: int) -> None:
        """Say that a group is at an offset of a partition: it has all records before it. Durable on return.

        A group that does not exist is made first.
        """
        body = json.dumps({"topic": topic, "to": offset, "partitions": [partition]}).encode()
        path = f"/mq/v1/groups/{quote(group, safe='')}/offsets:reset"
        headers = {"Content-Type": "application/json"}
        try:
            self._post(path, body, headers)
        except ServerError as error:
            if error.error_code != _GROUP_NOT_FOUND:
                raise
            self._make_group(group)
            self._post(path, body, headers)

    def _make_group(self, group: str) -> None:
        """A group begins with its first consumer instance; the instance may go at once."""
        consumers = f"/consumers/{quote(group, safe='')}"
        headers = {"Content-Type": "application/vnd.kafka.v2+json"}
        reply = self._post(consumers, b'{"auto.commit.enable": "false"}', headers)
        instance = _field(self._json(reply), "instance_id", str)
        path = f"{consumers}/instances/{quote(instance, safe='')}"
        self._exchange(_Request("DELETE", path, {"Accept": "application/json"}))

    def _receipts(self, reply: _Reply) -> list[dict[str, object]]:
        return [receipt for receipt in _field(self._json(reply), "offsets", list) if isinstance(receipt, dict)]

    @property
    def _base(self) -> str:
        return self._endpoint.urls[self._base_index]

    def _get(self, path: str, accept: str = "application/json") -> _Reply:
        return self._exchange(_Request("GET", path, {"Accept": accept}))

    def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> _Reply:
        return self._exchange(_Request("POST", path, {"Accept": "application/json", **headers}, body))

    def _exchange(self, request: _Request) -> _Reply:
        """Request and answer, with retries; see the module's docstring."""
        give_up_at = self._monotonic() + self._endpoint.retry_timeout_ms / 1000
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return self._attempt(request)
            except ssl.SSLCertVerificationError as error:
                raise ServerUnavailable(f"{self._base} is not trusted: {error}; see the option caFile") from error
            except (OSError, http.client.HTTPException) as error:
                reason, wanted_s, hint = f"{type(error).__name__}: {error}", 0.0, ""
            except _Temporary as refusal:
                reason, wanted_s, hint = str(refusal), refusal.pause_s, refusal.hint
            # Tasks that lost the same server come back at different times.
            wait_s = max(wanted_s, pause_s * random.uniform(0.5, 1.0))
            if self._monotonic() + wait_s > give_up_at:
                if wait_s > pause_s:
                    reason += f"; it asks for a pause of {wait_s:.0f} s"
                raise ServerUnavailable(
                    f"no answer from {self._base}{request.path} within {self._endpoint.retry_timeout_ms} ms of "
                    f"attempts (option retryTimeoutMs); the last one failed with {reason}{hint and '. '}{hint}"
                )
            log.warning("%s%s failed, next attempt in %.1f s: %s", self._base, request.path, wait_s, reason)
            self._base_index = (self._base_index + 1) % len(self._endpoint.urls)
            self._sleep(wait_s)
            pause_s = min(2 * pause_s, PAUSE_LONGEST_S)

    def _attempt(self, request: _Request) -> _Reply:
        timeout_s = self._endpoint.request_timeout_ms / 1000
        while True:
            connection, used_before = self._pool.take(self._base, timeout_s, self._endpoint.ca_pem)
            try:
                return self._once(connection, request)
            except (ConnectionError, http.client.BadStatusLine):
                # The server may close an idle connection at any time: that is no failure, one on a new one is.
                if not used_before:
                    raise

    def _once(self, connection: http.client.HTTPConnection, request: _Request) -> _Reply:
        headers = dict(request.headers)
        if self._endpoint.token is not None:
            headers["Authorization"] = f"Bearer {self._endpoint.token}"
        try:
            path = urlsplit(self._base).path.rstrip("/") + request.path
            connection.request(request.method, path, request.body, headers)
            response = connection.getresponse()
            body = response.read()
        except BaseException:
            connection.close()
            raise
        if response.will_close:
            connection.close()
        else:
            self._pool.give_back(self._base, self._endpoint.ca_pem, connection)
        if response.status in (200, 204):
            return _Reply(body, response.headers)
        raise _refusal(self._base + request.path, response, body)

    def _json(self, reply: _Reply) -> object:
        try:
            return json.loads(reply.body)
        except ValueError as error:
            raise MqError(f"{self._base} answered with something that is not JSON; is it an mq server?") from error


def _field(document: object, name: str, kind: type[_T]) -> _T:
    """A field of a JSON object, checked."""
    value = document.get(name) if isinstance(document, dict) else None
    if not isinstance(value, kind):
        raise MqError(f"the server's answer has no {kind.__name__} named {name!r}; is it an mq server?")
    return value


def _refusal(url: str, response: http.client.HTTPResponse, body: bytes) -> Exception:
    """The exception for a response that is not 200."""
    try:
        error = json.loads(body)
    except ValueError:
        error = None
    if not isinstance(error, dict):
        error = {}
    status = response.status
    error_code = error.get("error_code", status)
    message = f"{url} answered {status}/{error_code}: {error.get('message') or response.reason}"
    if "request_id" in error:
        message += f" (request {error['request_id']})"
    details = error.get("details")
    if status == 416 and isinstance(details, dict):
        beginning, end = _field(details, "beginning_offset", int), _field(details, "end_offset", int)
        return OutOfRange(message, beginning_offset=beginning, end_offset=end)
    if error.get("retriable", status in _TEMPORARY):
        hint = _HINTS.get(error_code, "")
        return _Temporary(message, _seconds(response.headers.get("Retry-After")), hint)
    if error_code in _NOT_FOUND:
        return NotFound(message, status=status, error_code=error_code)
    return ServerError(message, status=status, error_code=error_code)


def _seconds(retry_after: str | None) -> float:
    return float(retry_after) if retry_after is not None and retry_after.isdecimal() else 0.0
