"""A program of a user, to be checked by mypy and never run: what the client gives it has the types that it should."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import assert_type

import mq
import mq.sync


@dataclass
class Mail:
    to: str


@mq.worker("mails", group="mailers", concurrency=8, retries=5, backoff="1s 10s 1m", lease="30s")
async def send_mail(message: mq.Message[Mail]) -> None:
    assert_type(message.value, Mail)


@mq.worker("mails", group="mailers")
def send_mail_too(message: mq.Message[Mail]) -> int:
    return 1


async def main() -> None:
    async with mq.connect("http://127.0.0.1:8082", token="x") as q:
        receipt = await q.send("orders", {"sku": 9}, key="u1", delay="15m", schedule_key="order-77-reminder")
        assert_type(receipt, mq.Receipt)
        receipts = await asyncio.gather(*[q.send("orders", n) for n in range(3)])
        assert_type(receipts, list[mq.Receipt])
        task = asyncio.create_task(q.send("orders", 1))
        assert_type(await task, mq.Receipt)
        async for m in q.read("orders", start="earliest", as_=Mail):
            assert_type(m, mq.Message[Mail])
        async for batch in q.read("orders").batches():
            print(batch[0].value)
        async with q.group("billing").stream("orders", as_=Mail) as messages:
            async for one in messages:
                assert_type(one.value, Mail)
        async with q.group("billing").queue("orders", as_=Mail) as queue:
            async for one in queue:
                await one.ack()
        await send_mail.send(Mail("x"), delay="1h")
        assert_type(send_mail, mq.Worker[Mail])
        async for schedule in q.schedules.list("orders"):
            print(schedule.deliver_at)
        iterator = aiter(q.read("orders"))
        print((await anext(iterator)).value)


def without_async() -> None:
    with mq.sync.connect("http://127.0.0.1:8082") as client:
        assert_type(client.send("orders", 1), mq.Receipt)
        for message in client.read("orders"):
            print(message.value)
