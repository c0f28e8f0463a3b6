"""mq.testing: what users' tests stand on. Its likeness to a server is in test_behaviours.py."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import mq
import pytest
from mq.testing import Fake


async def test_a_years_delay_passes_in_an_instant_and_never_early() -> None:
    async with Fake("orders") as client:
        await client.send("orders", "in a year", delay="365d")
        await client.send("orders", "in an hour", delay="1h")
        await client.advance("59m")
        assert client.stored("orders") == []
        await client.advance("1m")
        assert [message.value for message in client.stored("orders")] == ["in an hour"]
        await client.advance("365d")
        assert [message.value for message in client.stored("orders")] == ["in an hour", "in a year"]


@pytest.mark.behaviour(19, 20, 22)
async def test_connections_that_are_cut_lose_nothing() -> None:
    async with Fake("orders") as client:
        found: list[int] = []

        async def read() -> None:
            async for message in client.read("orders", start="earliest"):
                found.append(message.value)

        reading = asyncio.ensure_future(read())
        for n in range(10):
            send = client.send("orders", n)
            if n % 3 == 0:
                client.server.cut()
            await client.advance("1m")
            assert (await send).offset == n
        assert found == list(range(10))
        reading.cancel()
        await asyncio.wait({reading})


async def test_two_clients_of_one_server_see_the_same() -> None:
    async with Fake("orders") as one, Fake(server=one.server) as other:
        await one.send("orders", 1)
        async for message in other.read("orders", start="earliest"):
            assert message.value == 1
            break


async def test_one_record_is_in_several_inboxes_and_each_is_read_by_itself() -> None:
    async with Fake("chat", partitions=2) as client:
        await client.send("chat", "before", queues=["user/1"])
        sent = await client.send("chat", "hello", queues=["user/42", "room/7"])
        await client.send("chat", "no one's")
        await client.send("chat", "later", queues=["user/42"], delay="1m")
        found = []
        async for message in client.inbox("chat", "user/42", start="earliest"):
            found.append((message.value, message.queue, message.queues, message.queue_offset))
            if len(found) == 2:
                break
            assert message.offset == sent.offset == message.queue_offset, "it begins at the partition's offset"
            await client.advance("1m")
        assert [one[:3] for one in found] == [("hello", "user/42", []), ("later", "user/42", [])]
        assert found[1][3] == (found[0][3] or 0) + 1, "without a gap"
        async for message in client.inbox("chat", "room/*", start="earliest"):
            assert (message.value, message.queues, message.queue) == ("hello", ["room/7"], None)
            break
        async for message in client.read("chat", start="earliest"):
            assert (message.queue, message.queues) == (None, [])
            break


async def test_a_device_goes_on_where_it_was_in_its_inbox() -> None:
    async with Fake("chat") as client:
        for number in range(3):
            await client.send("chat", number, queues=["user/42"])
        async with client.group("phone").inbox("chat", "user/42", start="earliest", commit="manual") as inbox:
            async for message in inbox:
                await message.ack()
                if message.value == 1:
                    await inbox.commit()
                    break
        async with client.group("phone").inbox("chat", "user/42") as inbox:
            assert (await anext(aiter(inbox))).value == 2
        async with client.group("laptop").inbox("chat", "user/42", start="earliest") as inbox:
            assert (await anext(aiter(inbox))).value == 0


async def test_records_of_an_inbox_are_leased_and_tried_again() -> None:
    async with Fake("chat") as client:
        for value, queue in ((0, "a"), (1, "b"), (2, "a")):
            await client.send("chat", value, queues=[queue])
        workers = client.group("workers")
        async with workers.queue("chat", queue="a") as messages:
            first, second = await messages.get(), await messages.get()
            assert first is not None
            assert second is not None
            assert [(one.value, one.queue, one.queue_offset) for one in (first, second)] == [(0, "a", 0), (2, "a", 1)]
            await second.ack()
            await first.nack("10s")
            await client.advance("10s")
            again = await messages.get()
            assert again is not None
            assert (again.value, again.attempt) == (0, 2)
            await again.reject("no")
        assert [message.value for message in client.stored("%DLQ%workers")] == [0]
        async with workers.queue("chat") as messages:
            values = [(await messages.get()) for _ in range(3)]
            assert [one and one.value for one in values] == [0, 1, 2], "the topic is consumed by itself"


async def test_a_topic_that_is_not_there_is_refused_with_what_to_do() -> None:
    async with Fake() as client:
        with pytest.raises(mq.Refused, match=r"create it with client\.topics\.create"):
            await client.send("orders", 1)


@pytest.mark.parametrize("given", [["topics"], ["topics", "a", "b"], ["nothing"]])
async def test_a_route_that_it_does_not_have_is_told(given: list[str]) -> None:
    async with Fake() as client:
        with pytest.raises(mq.Refused, match="no route"):
            await client.http.call("PATCH", "/mq/v1/" + "/".join(given))


PROGRAM = """
import asyncio
import mq

@mq.worker("mails", group="mailers")
async def send_mail(message):
    if message.attempt < 3:
        raise ValueError("try again")

async def test_a_mail_is_tried_again(mq_fake):
    await mq_fake.topics.create("mails")
    await mq_fake.send("mails", {"to": "ann"})
    run = asyncio.create_task(send_mail.run(mq_fake))
    await mq_fake.advance("1m")
    assert await mq_fake.group("mailers").lag() == 0
    send_mail.stop()
    await run

async def test_with_a_server(mq_server):
    async with mq.connect(mq_server) as client:
        await client.topics.create("fixtures")
        assert (await client.send("fixtures", 1)).offset == 0
"""


def test_a_users_tests_find_the_fixtures(mq_server: str, tmp_path: Path) -> None:
    (tmp_path / "test_mails.py").write_text(PROGRAM)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "tmp")],
        env={**os.environ, "MQ_TEST_URL": mq_server}, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "2 passed" in done.stdout, done.stdout + done.stderr
