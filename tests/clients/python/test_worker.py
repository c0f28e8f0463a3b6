"""mq.worker, against the server in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import mq
import pytest
from mq.errors import MqError
from mq.testing import Fake

from tests.waiting import PATIENCE_S


@dataclass
class Mail:
    to: str


@asynccontextmanager
async def running(worker: mq.Worker[Any], client: Fake) -> AsyncIterator[None]:
    task = asyncio.ensure_future(worker.run(client))
    await client.settle()
    try:
        yield
    finally:
        worker.stop()
        await client.settle()
        await asyncio.wait_for(task, PATIENCE_S)


def dead(client: Fake) -> list[tuple[Any, Any]]:
    return [(message.value, message.headers["mq-reason"]) for message in client.stored("%DLQ%g")]


@pytest.mark.behaviour(37, 38)
async def test_returning_acks_and_raising_gives_back_with_the_text_after_the_delays_asked_for() -> None:
    calls: list[tuple[str, int, float]] = []

    @mq.worker("mails", group="g", retries=2, backoff="1s 10s")
    async def send_mail(message: mq.Message[Mail]) -> None:
        calls.append((message.value.to, message.attempt, client.server.clock.monotonic_s()))
        if message.value.to == "bob":
            raise ValueError("no such address")

    async with Fake("mails") as client, running(send_mail, client):
        began = client.server.clock.monotonic_s()
        await send_mail.send(Mail("ann"))
        await client.send("mails", {"to": "bob"}, key="k")
        await client.advance("1m")
        assert [(to, attempt, at - began) for to, attempt, at in calls] == [
            ("ann", 1, 0), ("bob", 1, 0), ("bob", 2, 1), ("bob", 3, 11),
        ]  # fmt: skip
        assert dead(client) == [({"to": "bob"}, "ValueError: no such address")]
        assert await client.group("g").lag() == 0


@pytest.mark.behaviour(42)
async def test_reject_retry_and_values_that_cannot_be_read() -> None:
    attempts: list[int] = []

    @mq.worker("mails", group="g")
    async def send_mail(message: mq.Message[Mail]) -> None:
        if message.value.to == "never":
            raise mq.Reject("blocked")
        attempts.append(message.attempt)
        if message.attempt < 3:
            raise mq.Retry("2h")

    async with Fake("mails") as client, running(send_mail, client):
        await client.send_many("mails", [{"to": "never"}, {"for": "x"}, {"to": "later"}])
        await client.advance("1h")
        assert attempts == [1]
        await client.advance("4h")
        assert attempts == [1, 2, 3]
        (first, reason), (second, why) = dead(client)
        assert (first, reason, second) == ({"to": "never"}, "blocked", {"for": "x"})
        assert why.startswith("Undecodable: the value is no Mail: Object missing required field `to`")


@pytest.mark.behaviour(43)
async def test_so_many_at_a_time_as_was_said_and_no_more_are_held_than_a_few() -> None:
    at_work = most = 0
    go_on = asyncio.Event()

    @mq.worker("mails", group="g", concurrency=4)
    async def send_mail(message: mq.Message[int]) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await go_on.wait()
        at_work -= 1

    async with Fake("mails") as client, running(send_mail, client):
        await client.send_many("mails", list(range(50)))
        await client.settle()
        assert at_work == 4
        assert sum(lease.sub is not None for lease in client.server.groups["g"].leases) == 6
        go_on.set()
        await client.settle()
        assert most == 4
        assert await client.group("g").lag() == 0


@pytest.mark.behaviour(45)
async def test_a_long_call_keeps_its_lease_and_one_that_hangs_loses_it() -> None:
    calls: list[tuple[int, str]] = []
    go_on = asyncio.Event()

    @mq.worker("mails", group="g", lease="30s", lease_max="1h", concurrency=2)
    async def send_mail(message: mq.Message[int]) -> None:
        calls.append((message.attempt, "begin"))
        try:
            await go_on.wait()
        except asyncio.CancelledError:
            calls.append((message.attempt, "cancelled"))
            raise

    async with Fake("mails") as client, running(send_mail, client):
        await client.send("mails", 1)
        await client.advance("50m")
        assert calls == [(1, "begin")]
        await client.advance("11m")  # beyond lease_max the lease ends, and the message is handed out again
        assert calls[:2] == [(1, "begin"), (2, "begin")]
        go_on.set()
        await client.settle()
        assert await client.group("g").lag() == 0


@pytest.mark.behaviour(45)
async def test_a_lost_lease_cancels_the_handler_and_the_worker_goes_on() -> None:
    cancelled: list[int] = []

    @mq.worker("mails", group="g", lease="30s")
    async def send_mail(message: mq.Message[int]) -> None:
        if message.value == 1 and message.attempt == 1:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(message.value)
                raise

    async with Fake("mails") as client, running(send_mail, client):
        await client.send("mails", 1)
        await client.settle()
        client.server.groups["g"].leases[0].receipts = {"of another worker"}
        await client.advance("15s")
        assert cancelled == [1]
        await client.send("mails", 2)
        await client.advance("1m")
        assert await client.group("g").lag() == 0


async def test_a_call_that_takes_too_long_is_cancelled_and_tried_again() -> None:
    attempts: list[int] = []

    @mq.worker("mails", group="g", timeout=0.02, retries=0)
    async def send_mail(message: mq.Message[int]) -> None:
        attempts.append(message.attempt)
        await asyncio.sleep(10)

    async with Fake("mails") as client, running(send_mail, client):
        await client.send("mails", 1)
        for _ in range(100):
            await asyncio.sleep(0.01)
            if attempts and "%DLQ%g" in client.server.topics:
                break
        assert dead(client) == [(1, "TimeoutError: not done after 0.02 s")]


async def test_a_handler_that_settles_by_itself_or_asks_for_nonsense_does_no_harm() -> None:
    attempts: list[tuple[str, int]] = []

    @mq.worker("mails", group="g", retries=1, backoff="1s")
    async def work(message: mq.Message[str]) -> None:
        attempts.append((message.value, message.attempt))
        if message.value == "nacks" and message.attempt == 1:
            message.nack("1h")
        if message.value == "nonsense":
            raise mq.Retry("soon")
        if message.value == "times out":
            raise TimeoutError("of its own")

    async with Fake("mails") as client, running(work, client):
        await client.send_many("mails", ["nacks", "nonsense", "times out"])
        await client.advance("1m")
        assert [reason for _, reason in dead(client)] == [
            'MqError: delay: \'soon\' is not a duration; write for example "250ms", "30s", "15m" or "1h30m"',
            "TimeoutError: of its own",
        ]
        await client.advance("1h")
        assert [attempt for value, attempt in attempts if value == "nacks"] == [1, 2]
        assert await client.group("g").lag() == 0


async def test_a_plain_function_runs_in_a_thread() -> None:
    threads: set[str] = set()

    @mq.worker("mails", group="g", concurrency=2)
    def send_mail(message: mq.Message[int]) -> None:
        threads.add(threading.current_thread().name)
        if message.value == 1:
            raise mq.Reject("no")

    async with Fake("mails") as client, running(send_mail, client):
        await client.send_many("mails", [0, 1, 2])
        while await client.group("g").lag():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.001)
        assert threads
        assert all(name.startswith("mq-send_mail") for name in threads)
        assert dead(client) == [(1, "no")]


@pytest.mark.behaviour(44)
async def test_stop_finishes_what_is_being_worked_on_and_cancelling_gives_it_back() -> None:
    go_on = asyncio.Event()
    done: list[int] = []

    @mq.worker("mails", group="g", concurrency=2)
    async def send_mail(message: mq.Message[int]) -> None:
        await go_on.wait()
        done.append(message.value)

    async with Fake("mails") as client:
        await client.send_many("mails", list(range(5)))
        task = asyncio.ensure_future(send_mail.run(client))
        await client.settle()
        send_mail.stop()
        await client.settle()
        assert not task.done()
        go_on.set()
        await asyncio.wait_for(task, PATIENCE_S)
        assert done == [0, 1]
        assert await client.group("g").lag() == 3
        go_on.clear()
        task = asyncio.ensure_future(send_mail.run(client))
        await client.settle()
        task.cancel()
        await client.settle()
        assert task.cancelled()
        assert all(lease.sub is None for lease in client.server.groups["g"].leases)
        assert done == [0, 1]


async def test_middleware_is_around_the_handler_the_first_outermost() -> None:
    seen: list[str] = []

    def named(name: str) -> Callable[[mq.Message[Any], Any], Any]:
        async def middleware(message: mq.Message[Any], following: Any) -> Any:
            seen.append(f"{name} before")
            try:
                return await following(message)
            finally:
                seen.append(f"{name} after")

        return middleware

    @mq.worker("mails", group="g", middleware=[named("outer"), named("inner")])
    async def send_mail(message: mq.Message[int]) -> None:
        seen.append("handler")

    async with Fake("mails") as client, running(send_mail, client):
        await client.send("mails", 1)
        await client.settle()
        assert seen == ["outer before", "inner before", "handler", "inner after", "outer after"]


async def test_calling_a_worker_calls_the_function_and_its_type_is_that_of_the_annotation() -> None:
    @mq.worker("mails", group="g")
    async def send_mail(message: mq.Message[Mail]) -> str:
        """Sends it."""
        return message.value.to

    message: mq.Message[Mail] = mq.Message("mails", 0, 0, value_bytes=b'{"to":"ann"}')
    assert repr(message) == 'Message(mails:0:0, key=None, value_bytes=b\'{"to":"ann"}\')'
    message._decoded = Mail("ann")
    assert await send_mail(message) == "ann"
    assert (send_mail.name, send_mail.__doc__, send_mail.topic) == ("send_mail", "Sends it.", "mails")
    with pytest.raises(MqError, match=r"send_mail\.bind"):
        send_mail.send(Mail("ann"))


@pytest.mark.parametrize(
    "options", [{"concurrency": 0}, {"retries": -1}, {"backoff": "soon"}, {"lease": "x"}, {"timeout": "-1s"}], ids=str
)
def test_settings_that_make_no_sense_are_named(options: dict[str, Any]) -> None:
    with pytest.raises(MqError, match=next(iter(options))):
        mq.worker("mails", group="g", **options)(lambda message: None)


def test_a_function_without_a_message_or_with_an_unknown_type_is_told() -> None:
    def nothing() -> None: ...

    def unknown(message: mq.Message[Unknown]) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    for function in (nothing, unknown):
        with pytest.raises(MqError):
            mq.worker("mails", group="g")(function)  # type: ignore[arg-type]


async def test_a_worker_that_the_server_refuses_raises() -> None:
    @mq.worker("nosuch", group="g")
    async def work(message: mq.Message[Any]) -> None: ...

    async with Fake() as client:
        with pytest.raises(mq.Refused, match="nosuch not found"):
            await work.run(client)
