"""mq.kombu: kombu's connections, channels, producers and consumers, against a real server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import mq.celery
import mq.sync
import pytest
from kombu import Connection, Consumer, Exchange, Producer, Queue
from kombu.exceptions import OperationalError
from mq.errors import Refused
from mq.kombu.link import INBOX_MAX, Arrival, Ephemeral, Inbox, Link, close_links
from mq.kombu.transport import GET_S, PREFETCH_UNLIMITED, Transport
from mq.loop_thread import LoopThread

from tests.e2e.server import Server
from tests.gateway.cluster.cutting import Direction, Relay

LEASE_S = 2


@pytest.fixture
async def server(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Server]:
    server = Server(tmp_path / "data", getattr(request, "param", {}))
    await server.start()
    yield server
    close_links()
    await server.end()


@pytest.fixture
def url(mq_server: str) -> Iterator[str]:
    """Of the server that the tests of this run share."""
    yield mq_server
    close_links()


@pytest.fixture
def group() -> str:
    """Each test has a group and a queue of its own, under one name."""
    return f"g-{uuid4()}"


@pytest.fixture
def connection(url: str, group: str) -> Iterator[Connection]:
    with connect(url, group) as connection:
        yield connection


def connect(url: str, group: str, **options: Any) -> Connection:
    given = {"group": group, "lease": LEASE_S, "send_timeout": 5, **options}
    return Connection(url.replace("http://", "mq://"), transport_options=given)


class Taken:
    """A consumer and what it got."""

    def __init__(self, connection: Connection, *queues: Queue, prefetch: int = 0, no_ack: bool = False) -> None:
        self.connection = connection
        self.messages: list[Any] = []
        channel = connection.channel()
        channel.basic_qos(0, prefetch, False)
        self.consumer = Consumer(
            channel,
            list(queues),
            callbacks=[self._take],
            accept=["json", "pickle", "text/plain", "application/data"],
            no_ack=no_ack,
        )
        self.consumer.consume()

    def _take(self, body: Any, message: Any) -> None:
        self.messages.append(message)

    def wait(self, count: int, within_s: float = 20) -> list[Any]:
        until_s = time.monotonic() + within_s
        while len(self.messages) < count:
            assert time.monotonic() < until_s, f"{len(self.messages)} of {count}"
            with suppress(TimeoutError):
                self.connection.drain_events(timeout=0.5)
        return [message.payload for message in self.messages]

    def nothing_for(self, seconds: float = 0.5) -> None:
        with pytest.raises(TimeoutError):
            self.connection.drain_events(timeout=seconds)


def publish(connection: Connection, body: Any, routing_key: str | None = None, **options: Any) -> None:
    Producer(connection.default_channel).publish(body, routing_key=routing_key or own(connection), **options)


def own(connection: Connection) -> str:
    return str(connection.transport_options["group"])


def work(connection: Connection, name: str | None = None) -> Queue:
    name = name or own(connection)
    queue = Queue(name, Exchange(""), routing_key=name)(connection.default_channel)
    queue.declare()
    return queue


def letters(url: str, group: str) -> Iterator[Any]:
    with mq.sync.connect(url) as client:
        until_s = time.monotonic() + 20
        while f"%DLQ%{group}" not in client.topics.list():
            assert time.monotonic() < until_s
            time.sleep(0.02)
        yield from client.read(f"%DLQ%{group}", start="earliest")


def test_messages_are_settled_one_by_one(connection: Connection, url: str, group: str) -> None:
    queue = work(connection)
    for n in range(4):
        publish(connection, {"n": n})
    assert queue.queue_declare(passive=True).message_count == 4
    taken = Taken(connection, queue)
    assert sorted(body["n"] for body in taken.wait(4)) == [0, 1, 2, 3]
    first, second, third, fourth = taken.messages
    first.ack()
    second.reject()
    third.requeue()
    taken.wait(5)
    assert taken.messages[4].payload == third.payload
    assert [message.delivery_info["redelivered"] for message in taken.messages] == [False] * 4 + [True]
    taken.messages[4].ack()
    fourth.ack()
    assert next(letters(url, group)).headers["mq-reason"] == "rejected by the consumer"
    with mq.sync.connect(url) as client:
        while client.group(group).lag():
            time.sleep(0.02)


def test_names_bodies_and_serializers_survive(connection: Connection) -> None:
    queue = work(connection, "größe/1 x_x")
    publish(connection, "grüße", queue.name)
    publish(connection, b"\0\xff", queue.name)
    publish(connection, {"a": {1, 2}}, queue.name, serializer="pickle")
    publish(connection, {"big": "x" * 100_000}, queue.name, compression="zlib")
    taken = Taken(connection, queue)
    taken.wait(4)
    bodies = {str(type(m.payload)): m.payload for m in taken.messages}
    assert bodies["<class 'str'>"] == "grüße"
    assert {"a": {1, 2}} in [m.payload for m in taken.messages]
    assert {"big": "x" * 100_000} in [m.payload for m in taken.messages]
    assert b"\0\xff" in [m.payload for m in taken.messages]


def test_the_prefetch_count_bounds_what_is_held_over_all_queues(connection: Connection) -> None:
    queues = [work(connection, f"{own(connection)}-{name}") for name in ("one", "two", "three")]
    for queue in queues:
        for n in range(3):
            publish(connection, n, queue.name)
    taken = Taken(connection, *queues, prefetch=2)
    taken.wait(2)
    taken.nothing_for()
    taken.messages[0].ack()
    taken.wait(3)
    taken.nothing_for()
    taken.consumer.qos(prefetch_count=4)
    taken.wait(5)
    taken.nothing_for()
    for message in taken.messages[1:]:
        message.ack()
    taken.wait(9)


def test_queues_come_and_go_and_what_is_held_stays_held(connection: Connection, group: str) -> None:
    one, two = f"{group}-1", f"{group}-2"
    taken = Taken(connection, work(connection, one), prefetch=5)
    publish(connection, 1, one)
    taken.wait(1)
    taken.consumer.add_queue(work(connection, two))
    taken.consumer.consume()
    publish(connection, 2, two)
    taken.wait(2)
    taken.nothing_for(LEASE_S * 1.5)  # extended by the subscription that was replaced
    taken.consumer.cancel_by_queue(one)
    publish(connection, 3, one)
    taken.nothing_for()
    for message in taken.messages:
        message.ack()
    other = Taken(connection, work(connection, one))
    assert other.wait(1) == [3]


def test_what_is_held_outlives_a_connection_that_was_given_up(url: str, group: str) -> None:
    lost, kept = connect(url, group), connect(url, group)
    taken = Taken(lost, work(lost), prefetch=1)
    publish(kept, "running")
    publish(kept, "waiting")
    taken.wait(1)
    lost.collect()
    other = Taken(kept, work(kept), prefetch=10)
    assert other.wait(1) == ["waiting"]
    other.nothing_for(LEASE_S * 1.5)
    taken.messages[0].ack()
    kept.close()


def test_closing_gives_back_what_is_held(url: str, group: str) -> None:
    first, second = connect(url, group), connect(url, group)
    taken = Taken(first, work(first))
    publish(second, "task")
    taken.wait(1)
    first.close()
    other = Taken(second, work(second))
    began = time.monotonic()
    assert other.wait(1) == ["task"]
    assert time.monotonic() - began < LEASE_S / 2
    second.close()


def test_get_takes_one_message_and_no_more(connection: Connection) -> None:
    queue = work(connection)
    assert queue.get() is None
    publish(connection, "a")
    publish(connection, "b")
    message = queue.get()
    assert message is not None
    assert queue.get(no_ack=True) is not None
    assert queue.get() is None
    message.requeue()
    again = queue.get(no_ack=True)
    assert again is not None
    assert again.payload == message.payload
    assert queue.get() is None


async def test_get_waits_for_a_server_that_is_far_away(url: str, group: str) -> None:
    def begun(relayed: str) -> tuple[Connection, Queue]:
        connection = connect(relayed, group)
        queue = work(connection)
        publish(connection, "first")
        assert queue.get(no_ack=True) is not None  # all that is asked once has been
        publish(connection, "second")
        return connection, queue

    async with Relay(url) as relay:
        connection, queue = await asyncio.to_thread(begun, relay.url)
        relay.cut(Direction.ANSWERS)
        got = asyncio.create_task(asyncio.to_thread(queue.get, no_ack=True))
        await asyncio.sleep(3 * GET_S)
        relay.mend()
        message = await got
        assert relay.held_count
        assert message is not None
        assert message.payload == "second"
        assert await asyncio.to_thread(queue.get) is None
        await asyncio.to_thread(connection.close)
        await asyncio.to_thread(close_links)


def test_without_acks_a_message_is_done_when_it_is_delivered(connection: Connection) -> None:
    queue = work(connection)
    taken = Taken(connection, queue, no_ack=True)
    for n in range(20):
        publish(connection, n)
    taken.wait(20)
    until_s = time.monotonic() + 10
    while queue.queue_declare(passive=True).message_count:
        assert time.monotonic() < until_s
        time.sleep(0.02)


def test_queues_are_purged_deleted_and_missed(connection: Connection) -> None:
    queue = work(connection)
    for n in range(3):
        publish(connection, n)
    assert queue.purge() == 3
    assert queue.purge() == 0
    publish(connection, "kept")
    taken = Taken(connection, queue)
    assert taken.wait(1) == ["kept"]
    taken.messages[0].ack()
    taken.consumer.cancel()
    queue.delete()
    with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
        queue.queue_declare(passive=True)
    publish(connection, "for nobody")  # as in RabbitMQ: a message that no queue is there for is dropped


def test_exchanges_reach_queues_that_live_with_processes(url: str, group: str) -> None:
    here, there = connect(url, group), connect(url, group)
    fan, topic, direct = (
        Exchange(f"{group}.fan", "fanout"),
        Exchange(f"{group}.ev", "topic"),
        Exchange(f"{group}.reply", "direct"),
    )
    kinds = [(fan, ""), (topic, "task.*"), (direct, "me")]
    queues = [
        Queue(f"{group}-{n}", exchange, routing_key=key, auto_delete=True) for n, (exchange, key) in enumerate(kinds)
    ]
    taken = Taken(here, *queues)
    producer = Producer(there.default_channel)
    for exchange, key in ((fan, "any"), (topic, "task.sent"), (topic, "worker.up"), (direct, "me"), (direct, "you")):
        producer.publish(f"{exchange.type} {key}", exchange=exchange, routing_key=key, declare=[exchange])
    producer.publish("by name", routing_key=f"{group}-0")
    assert sorted(taken.wait(4)) == ["by name", "direct me", "fanout any", "topic task.sent"]
    taken.nothing_for()
    here.close()
    there.close()


def test_a_durable_queue_is_bound_as_kombu_says(connection: Connection, group: str) -> None:
    exchange = Exchange("shop", "topic")
    queue = Queue(group, exchange, routing_key="order.#")
    taken = Taken(connection, queue)
    producer = Producer(connection.default_channel)
    producer.publish(1, exchange=exchange, routing_key="order.new.paid", declare=[queue])
    producer.publish(2, exchange=exchange, routing_key="user.new")
    assert taken.wait(1) == [1]
    taken.nothing_for()


def test_headers_of_a_message_are_no_headers_of_its_record(connection: Connection, url: str, group: str) -> None:
    queue = work(connection)
    forged = {"mq-reason": "forged", "mq-original-topic": "secret", "mq-attempt": "7"}
    publish(connection, {"n": 1}, queue.name, headers=forged)
    taken = Taken(connection, queue)
    taken.wait(1)
    assert taken.messages[0].headers.items() >= forged.items()
    taken.messages[0].reject()
    dead = next(letters(url, group))
    assert dead.headers["mq-reason"] == "rejected by the consumer"
    assert "secret" not in dead.headers.values()
    assert dead.headers.get("mq-attempt") != "7"


def test_what_kombu_did_not_send_is_a_dead_letter(connection: Connection, url: str, group: str) -> None:
    taken = Taken(connection, work(connection))
    with mq.sync.connect(url) as client:
        client.send(group, {"sku": 9})
        client.send(group, b"\xff")
    found = letters(url, group)
    reasons = [next(found).headers["mq-reason"] for _ in range(2)]
    assert reasons == ["not a message of kombu"] * 2
    taken.nothing_for(0.1)


def test_a_deleted_queue_ends_its_consumer_with_an_error(connection: Connection, url: str, group: str) -> None:
    taken = Taken(connection, work(connection))
    publish(connection, 1)
    taken.wait(1)
    with mq.sync.connect(url) as client:
        client.topics.delete(group)
    with pytest.raises(connection.connection_errors, match=r"the subscription of g-.* ended"):
        taken.wait(2)
    again = Taken(connection, work(connection))  # as Celery does then
    publish(connection, 2)
    assert again.wait(1) == [2]


def test_a_deleted_queue_is_there_again_for_who_sends_to_it(connection: Connection, url: str, group: str) -> None:
    queue = work(connection)
    with mq.sync.connect(url) as client:
        client.topics.delete(group)
        publish(connection, 1)
        assert group in client.topics.list()
    assert queue.get(no_ack=True).payload == 1


def eta(seconds: float) -> dict[str, Any]:
    return {"eta": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(), "id": "task-1"}


@pytest.mark.parametrize("server", [{"MQ_TIMER_DELAY_MAX_MS": "1000"}], indirect=True)
def test_a_delay_that_is_longer_than_the_server_takes_is_sent_on(server: Server, group: str) -> None:
    connection = connect(server.url, group)
    taken = Taken(connection, work(connection))
    began = time.time()
    publish(connection, "later", headers=eta(2.5))
    taken.wait(1)
    assert time.time() - began >= 2.5
    assert taken.messages[0].headers["eta"] is None
    assert taken.messages[0].headers["mq_eta"]
    taken.nothing_for()
    connection.close()


def test_an_eta_of_400_days_waits_for_a_year_first(connection: Connection, url: str, group: str) -> None:
    work(connection)
    publish(connection, "later", headers=eta(400 * 86_400))
    with mq.sync.connect(url) as client:
        (schedule,) = client.schedules.list(group)
        assert schedule.schedule_key == "task-1"
        wait = schedule.deliver_at - datetime.now(UTC)
        assert timedelta(days=364) < wait <= timedelta(days=365)
    channel = connection.default_channel
    assert channel.cancel_delayed(group, "task-1")
    assert not channel.cancel_delayed(group, "task-1")


def test_the_same_task_may_wait_twice(connection: Connection) -> None:
    taken = Taken(connection, work(connection))
    publish(connection, 1, headers=eta(0.5))
    publish(connection, 2, headers=eta(0.5))
    assert sorted(taken.wait(2)) == [1, 2]


async def test_an_outage_is_not_seen(server: Server, group: str) -> None:
    connection = connect(server.url, group, lease=120, send_timeout=60)
    taken = Taken(connection, work(connection))
    publish(connection, "before")
    taken.wait(1)
    await server.kill()
    server._port = int(server.url.rpartition(":")[2])
    taken.nothing_for(0.3)
    await server.start()
    taken.messages[0].ack()
    publish(connection, "after")
    assert taken.wait(2) == ["before", "after"]
    connection.close()


async def test_a_server_that_is_away_is_told(server: Server, group: str) -> None:
    with connect(server.url, group, send_timeout=0.5) as connection:
        work(connection)
        await server.kill()
        with pytest.raises(OperationalError, match=r"within 0.5 s; the message may be stored later"):
            publish(connection, "late")
        another = connect(server.url, group, send_timeout=0.5)
        with pytest.raises(connection.connection_errors, match=r"did not answer within 0.5 s"):
            another.connect()
        with pytest.raises(connection.connection_errors, match="readyz"):  # one that was never there
            connect("http://127.0.0.1:1", group).connect()
        server._port = int(server.url.rpartition(":")[2])
        await server.start()  # else the end waits 10 s for what is to be sent


def test_a_forked_process_has_a_connection_of_its_own(connection: Connection) -> None:
    queue = work(connection)
    taken = Taken(connection, queue)
    publish(connection, os.getpid())
    assert taken.wait(1) == [os.getpid()]
    child = os.fork()
    if not child:
        try:
            taken.messages[0].ack()  # the parent's: nothing happens
            publish(connection, os.getpid())
            connection.close()
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert taken.wait(2)[1] == child
    taken.nothing_for()
    for message in taken.messages:
        message.ack()


@pytest.mark.matrix
def test_a_consumer_without_a_prefetch_count_holds_so_many_and_no_more(url: str, group: str) -> None:
    with connect(url, group, lease=60) as connection:  # a lease that ended would make room for one more
        taken = Taken(connection, work(connection))
        for n in range(PREFETCH_UNLIMITED + 1):
            publish(connection, n)
        taken.wait(PREFETCH_UNLIMITED, within_s=60)
        taken.nothing_for()
        taken.messages[0].ack()
        taken.wait(PREFETCH_UNLIMITED + 1)


@pytest.mark.parametrize("is_moved", [False, True])
async def test_messages_for_a_slow_consumer_wait_in_the_server(is_moved: bool) -> None:
    """Of several readers of one queue too, and where another connection begins to consume it meanwhile."""
    loop = LoopThread()
    queue = Ephemeral(SimpleNamespace(loop=loop), "replies")  # type: ignore[arg-type]
    inbox = queue.inbox
    for n in range(INBOX_MAX):
        inbox.put(_arrival(n))
    waiting = loop.call(lambda: _started(queue))
    assert len(inbox._items) == INBOX_MAX
    if is_moved:
        inbox = Inbox(loop)
        loop.soon(queue.deliver_to, inbox)
    taken = [inbox.take(10.0) for _ in range(INBOX_MAX // 2)]
    if is_moved:
        taken += [inbox.take(10.0) for _ in range(INBOX_MAX // 2)]
    async with asyncio.timeout(10):
        while not all(task.done() for task in waiting):  # noqa: ASYNC110 - they are another loop's
            await asyncio.sleep(0.01)
    taken += [inbox.take() for _ in range(len(inbox._items))]
    assert [one and one.payload["n"] for one in taken] == list(range(INBOX_MAX + 2))
    loop.stop()


def _arrival(n: int) -> Arrival:
    return Arrival("replies", {"n": n})


async def _started(queue: Ephemeral) -> list[asyncio.Task[None]]:
    tasks = [asyncio.ensure_future(queue.put(_arrival(INBOX_MAX + n))) for n in range(2)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


@pytest.mark.parametrize(
    "properties",
    [{"delivery_info": None}, {"delivery_info": "x"}, {"body_encoding": "zip"}, {"body_encoding": "base64"}, None],
)
def test_a_message_that_kombu_could_not_read_is_rejected_and_the_next_one_comes(
    server: Server, group: str, properties: object
) -> None:
    with connect(server.url, group) as connection, mq.sync.connect(server.url) as client:
        taken = Taken(connection, work(connection))
        publish(connection, "first")
        assert taken.wait(1) == ["first"]
        client.send(group, {"body": "abcde", "headers": {}, "properties": properties})
        publish(connection, "second")
        assert taken.wait(2) == ["first", "second"]


@pytest.mark.parametrize("server", [{"MQ_TIMER_DELAY_MAX_MS": "1000"}], indirect=True)
def test_a_delay_that_could_not_go_on_goes_on_later(
    server: Server, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = Link._stored
    refusals = [Refused("the disk is full", 50701, retriable=True)]

    async def refused_once(self: Link, topic: str, body: bytes | None, **options: Any) -> None:
        if ":" in options["msg_id"] and refusals:  # the rest of a delay
            raise refusals.pop()
        await stored(self, topic, body, **options)

    monkeypatch.setattr(Link, "_stored", refused_once)
    with connect(server.url, group) as connection:
        taken = Taken(connection, work(connection), prefetch=1)
        publish(connection, "later", headers=eta(2.5))
        assert taken.wait(1, within_s=20) == ["later"]
        assert not refusals


def test_a_setting_that_is_none_is_told(url: str, group: str) -> None:
    with connect(url, group, lease="0.5s") as connection:
        taken = Taken(connection, work(connection))
        with pytest.raises(mq.MqError, match="lease: must be at least 1s"):
            taken.wait(1)


def test_a_queue_of_replies_is_declared_again_on_the_same_connection(connection: Connection, group: str) -> None:
    exchange = Exchange(f"{group}.reply", "direct")
    for n in range(2):
        with connection.channel() as channel:
            queue = Queue(f"{group}-r", exchange, routing_key="me", auto_delete=True)(channel)
            queue.declare()
            Producer(connection.default_channel).publish(n, exchange=exchange, routing_key="me")
            until_s = time.monotonic() + 10
            while (message := queue.get(no_ack=True)) is None:
                assert time.monotonic() < until_s
            assert message.payload == n


def test_the_aliases_are_there() -> None:
    assert Connection("mq://").get_transport_cls() is Transport
    assert Connection("mq://").get_transport_cls().scheme == "http"
    assert Connection("mqs://").get_transport_cls().scheme == "https"
    assert Connection("http://localhost", transport="mq.kombu:Transport").get_transport_cls().driver_type == "mq"
    assert mq.celery.revoke.__doc__
