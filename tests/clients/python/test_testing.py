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
