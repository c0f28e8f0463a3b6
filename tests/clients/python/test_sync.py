"""mq.sync: the same words without async."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Iterator

import mq
import mq.client
import mq.recurring
import mq.schedules
import mq.sync
import mq.topics
import pytest
from mq.errors import Closed, LeaseLost, MqError
from mq.testing import Fake


@pytest.fixture
def client() -> Iterator[mq.sync.Client]:
    with mq.sync.Client(Fake("orders", "mails")) as client:
        yield client


def test_send_and_read(client: mq.sync.Client) -> None:
    assert client.send("orders", {"sku": 9}, key="u1").offset == 0
    assert [receipt.offset for receipt in client.send_many("orders", [1, 2])] == [1, 2]
    reader = client.read("orders", start="earliest")
    values = []
    for message in reader:
        values.append(message.value)
        if message.offset == 1:
            assert reader.cursor == "orders:0=2"
        if len(values) == 3:
            break
    assert values == [{"sku": 9}, 1, 2]


def test_a_stream_commits_what_is_done(client: mq.sync.Client) -> None:
    client.send_many("orders", list(range(10)))
    with client.group("g").stream("orders", start="earliest") as messages:
        for message in messages:
            if message.value == 4:
                break
    assert client.group("g").lag() == 6


def test_a_queue_settles_and_waits_for_it(client: mq.sync.Client) -> None:
    client.send_many("mails", ["good", "bad"])
    attempts = []
    for message in client.group("g").queue("mails"):
        attempts.append((message.value, message.attempt))
        if message.value == "bad" and message.attempt == 1:
            message.nack(0, "again")
        else:
            message.ack()
        if len(attempts) == 3:
            with pytest.raises(LeaseLost):
                message.ack()
            break
    assert attempts == [("good", 1), ("bad", 1), ("bad", 2)]
    assert client.group("g").lag() == 0


def test_schedules_and_topics(client: mq.sync.Client) -> None:
    client.send("orders", "later", delay="1h", schedule_key="k")
    assert [one.schedule_key for one in client.schedules.list("orders")] == ["k"]
    client.schedules.move("orders", "k", delay="2h")
    assert client.schedules.get("orders", "k").value == "later"
    assert client.schedules.fire("orders", "k").offset == 0
    with pytest.raises(mq.Refused):
        client.schedules.cancel("orders", "k")
    client.topics.create("new", 2)
    assert "new" in client.topics.list()
    client.topics.delete("new")
    assert "new" not in client.topics.list()
    with pytest.raises(mq.Refused):
        client.topics.get("new")
    assert client.group("g").configure(max_attempts=2)["max_attempts"] == 2
    client.group("g").delete()


def test_recurring_schedules(client: mq.sync.Client) -> None:
    made = client.recurring.put("poll", "orders", {"n": 1}, every="5m", key="k")
    assert (made.every_ms, made.paused, made.version) == (300_000, False, 1)
    assert client.recurring.pause("poll").next_at is None
    assert client.recurring.resume("poll").next_at is not None
    assert [one.name for one in client.recurring.list("orders")] == ["poll"]
    assert client.recurring.get("poll").record == {"key": "k", "value": {"n": 1}}
    client.recurring.delete("poll")
    with pytest.raises(mq.Refused) as caught:
        client.recurring.get("poll")
    assert caught.value.code == 40452


def test_many_threads_may_send(client: mq.sync.Client) -> None:
    offsets: list[int | None] = []

    def send() -> None:
        for n in range(20):
            offsets.append(client.send("orders", n).offset)

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offset for offset in offsets if offset is not None) == list(range(80))


def test_a_closed_client_and_an_unreachable_server_say_so() -> None:
    with mq.sync.Client(Fake("orders")) as client:
        pass
    with pytest.raises(Closed):
        client.send("orders", 1)
    with pytest.raises(MqError, match="no URL"), mq.sync.connect("nonsense"):
        pass


def test_a_fork_is_told(client: mq.sync.Client) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # no test runs here: only what is asserted is asked for
        try:
            client.send("orders", 1)
        except MqError as error:
            os.write(write_end, str(error).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert b"open another in each process" in os.read(read_end, 1000)
    os.close(read_end)


def test_whatever_the_client_can_do_can_be_done_without_async() -> None:
    pairs = [
        (mq.client.Client, mq.sync.Client, {"flush", "room", "is_full", "state", "http"}),  # each send is waited for
        (mq.client.Group, mq.sync.Group, set()),
        (mq.schedules.Schedules, mq.sync.Schedules, set()),
        (mq.recurring.RecurringSchedules, mq.sync.RecurringSchedules, set()),
        (mq.topics.Topics, mq.sync.Topics, set()),
    ]
    for asynchronous, blocking, left_out in pairs:
        names = {name for name in vars(asynchronous) if not name.startswith("_")}
        assert names - vars(blocking).keys() == left_out
        for name in names - left_out:
            if callable(function := getattr(asynchronous, name)):
                theirs = list(inspect.signature(function).parameters)
                ours = list(inspect.signature(getattr(blocking, name)).parameters)
                assert theirs[: len(ours) - 1] == ours[:-1] or theirs == ours, name
