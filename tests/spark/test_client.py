"""The client against a server that misbehaves: what is retried, what is not, and what the user is told."""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator

import pytest
from pyspark_mq.client import Client, ConnectionPool, Endpoint
from pyspark_mq.errors import MqError, NotFound, OutOfRange, ServerError, ServerUnavailable
from pyspark_mq.offsets import Bounds

from tests.spark.fake_server import CUT, DISCONNECT, Answer, FakeServer, serving

BUSY = Answer(503, {"error_code": 50351, "message": "busy", "retriable": True}, (("Retry-After", "2"),))


class Clock:
    """Monotonic seconds that pass only when somebody sleeps, and connections of one test."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []
        self.pool = ConnectionPool()

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with serving() as fake:
        fake.create("t", 2)
        fake.send("t", 0, [b"a", b"b"], time_ms=1000)
        yield fake


@pytest.fixture
def clock() -> Iterator[Clock]:
    clock = Clock()
    yield clock
    clock.pool.close()


def client(clock: Clock, *urls: str, token: str | None = None, retry_timeout_ms: int = 60_000) -> Client:
    endpoint = Endpoint(urls=urls, token=token, retry_timeout_ms=retry_timeout_ms)
    return Client(endpoint, pool=clock.pool, sleep=clock.sleep, monotonic=clock.monotonic)


def test_what_topics_hold(server: FakeServer, clock: Clock) -> None:
    reader = client(clock, server.url)
    assert reader.topic_names() == ["t"]
    assert reader.topic("t").partitions == {0: Bounds(0, 2), 1: Bounds(0, 0)}
    assert reader.offsets_for_time("t", 1000) == {0: 0, 1: None}
    assert reader.offsets_for_time("t", 1001) == {0: None, 1: None}
    assert server.connections == 1, "one connection is kept for all requests"


def test_a_fetch_brings_whole_batches_and_the_bounds(server: FakeServer, clock: Clock) -> None:
    fetched = client(clock, server.url).fetch("t", 0, 1, end_offset=2, max_bytes=1)
    assert (fetched.next_offset, fetched.bounds, fetched.epoch) == (2, Bounds(0, 2), "1")
    assert len(fetched.body) > 61


@pytest.mark.parametrize("fault", [BUSY, DISCONNECT, CUT, Answer(502, {}), Answer(504, {"message": "proxy"})])
def test_a_failure_that_may_pass_is_tried_again(server: FakeServer, clock: Clock, fault: Answer | str) -> None:
    server.faults = [fault, fault]
    assert client(clock, server.url).topic_names() == ["t"]
    assert len(clock.slept) == 2
    assert clock.slept[0] < clock.slept[1] or clock.slept == [2, 2]


def test_the_server_says_when_to_come_back(server: FakeServer, clock: Clock) -> None:
    server.faults = [BUSY]
    client(clock, server.url).topic_names()
    assert clock.slept == [2]


def test_an_idle_connection_that_the_server_closed_costs_no_pause(server: FakeServer, clock: Clock) -> None:
    reader = client(clock, server.url)
    reader.topic_names()
    server.faults = [DISCONNECT]
    assert reader.topic_names() == ["t"]
    assert clock.slept == []


def test_it_gives_up_in_the_end_and_says_where_and_why(server: FakeServer, clock: Clock) -> None:
    server.faults = [BUSY] * 100
    with pytest.raises(ServerUnavailable, match=r"/mq/v1/topics within 9000 ms .*retryTimeoutMs.*503/50351: busy"):
        client(clock, server.url, retry_timeout_ms=9000).topic_names()
    assert sum(clock.slept) <= 9


def test_a_server_that_remembers_no_more_producers_says_so_and_what_to_do(server: FakeServer, clock: Clock) -> None:
    """Nobody waits for days until one is forgotten."""
    full = {"error_code": 42950, "message": "Too many ids of recent sends are remembered.", "retriable": True}
    server.faults = [Answer(429, full, (("Retry-After", "604800"),))]
    with pytest.raises(ServerUnavailable, match=r"pause of 604800 s\. .*coalesce\), or raise store\.producers_max"):
        client(clock, server.url).topic_names()
    assert clock.slept == []


def test_the_next_url_is_tried_when_one_is_down(server: FakeServer, clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        down = f"http://127.0.0.1:{unused.getsockname()[1]}"
    assert client(clock, down, server.url).topic_names() == ["t"]
    assert len(clock.slept) == 1


def test_refusals_for_good_are_not_retried(server: FakeServer, clock: Clock) -> None:
    reader = client(clock, server.url)
    with pytest.raises(NotFound, match=r"/mq/v1/topics/no/offsets answered 404/40401: Topic not found"):
        reader.topic("no")
    with pytest.raises(OutOfRange) as caught:
        reader.fetch("t", 0, 9, end_offset=10, max_bytes=1)
    assert (caught.value.beginning_offset, caught.value.end_offset) == (0, 2)
    server.faults = [Answer(500, {"error_code": 50002, "message": "rot", "retriable": False, "request_id": "r7"})]
    with pytest.raises(ServerError, match=r"500/50002: rot \(request r7\)"):
        reader.topic_names()
    assert clock.slept == []


def test_a_server_that_is_not_ours_is_not_taken_for_a_deleted_topic(server: FakeServer, clock: Clock) -> None:
    server.faults = [Answer(404, {"error_code": 404, "message": "Not Found"}), Answer(200, {"hello": 1})]
    with pytest.raises(ServerError) as caught:
        client(clock, server.url).topic("t")
    assert not isinstance(caught.value, NotFound)
    with pytest.raises(MqError, match="is it an mq server"):
        client(clock, server.url).topic("t")


def test_the_token_goes_with_every_request(server: FakeServer, clock: Clock) -> None:
    client(clock, server.url, token="secret").topic_names()
    assert server.tokens == ["Bearer secret"]


def test_topics_with_odd_names_are_escaped(server: FakeServer, clock: Clock) -> None:
    server.create("%DLQ%a/b c")
    assert client(clock, server.url).topic("%DLQ%a/b c").partitions == {0: Bounds(0, 0)}


def test_a_pool_is_empty_after_pickling(server: FakeServer, clock: Clock) -> None:
    pool = clock.pool
    client(clock, server.url).topic_names()
    _, used_before = copy.copy(pool).take(server.url, 1, None)
    assert not used_before
    connection, used_before = pool.take(server.url, 1, None)
    assert used_before
    connection.close()
