"""gateway/surfaces/ws/turn_sends.py: produces of one turn share a batch, and keep the order of their sockets."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.api import turn_batches
from gateway.api.producer import Producer, Receipt
from gateway.api.render import receipt_as_json
from gateway.api.shapes.commands import ID_MAX
from gateway.api.turns import COUNTED_BYTES
from gateway.brokers.base import AnswerLost, BrokerUnreachable
from gateway.surfaces.ws.protocol import CloseCode, reply, stored_reply
from store import record_batch
from store.errors import DiskFull, SealedQueue, StoreError
from store.types import Acks, QueueKey
from tests.gateway.surfaces.ws.talk import Server, Talk, talking
from tests.waiting import until


def produce(id_: int, value: object, **fields: Any) -> dict[str, Any]:
    return {"id": id_, "op": "produce", "topic": "orders", "records": [{"value": value}], **fields}


def values_of(talk: Talk, partition: int) -> list[bytes | None]:
    queue = QueueKey(talk.gateway.routes_table.topic("orders").topic_id, partition)
    return [record.value for entry in talk.broker.entries[queue] for record in record_batch.decode(entry.batch)]


@given(st.integers(0, ID_MAX), st.sampled_from(Acks), st.integers(0, 10_000), st.integers(0, 2**62))
def test_the_answer_is_that_of_all_other_produces(id_: int, acks: Acks, partition: int, offset: int) -> None:
    receipt = receipt_as_json(Receipt(partition, offset, 0, None, None, acks))
    fields = {"acks": acks.name.lower(), "offsets": [receipt]}
    assert stored_reply(id_, acks.name.lower().encode(), partition, offset) == reply(id_, fields)


async def test_records_of_one_turn_are_one_batch_whichever_socket_sends_them() -> None:
    server = Server({"orders": 1})
    async with server.talk() as one, server.talk() as other:
        await one.say(produce(1, "a"), produce(2, "b", ack=False))
        await other.say(produce(7, "c"))
        assert (await one.hear(), await other.hear()) == (
            {"id": 1, "ok": True, "acks": "flushed", "offsets": [{"partition": 0, "offset": 0}]},
            {"id": 7, "ok": True, "acks": "flushed", "offsets": [{"partition": 0, "offset": 2}]},
        )
        assert [append.record_count for append in server.broker.appends] == [3]
        assert not one.conversation.in_flight
        await one.quiet()
    await server.sessions.close()


KINDS = ("plain",) * 10 + ("of a record",) * 3 + ("written",) * 3 + ("other",) * 3 + ("two", "large", "repeat")


@pytest.mark.parametrize("seed", range(20))
async def test_a_partition_has_the_records_of_a_socket_in_the_order_they_came(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every kind of produce that there is, mixed: those that share a batch, and those that take a task, which are
    slower to the store here."""
    random = Random(seed)
    async with talking({"orders": 2, "others": 1}) as talk:
        produces = Producer.produce

        async def late(*given: Any, **named: Any) -> Any:
            for _ in range(5):
                await asyncio.sleep(0)
            return await produces(*given, **named)

        monkeypatch.setattr(Producer, "produce", late)
        sent: dict[int, list[bytes]] = {0: [], 1: []}
        for number in range(120):
            partition, kind = random.randrange(2), random.choice(KINDS)
            value = f"{number:03}" + "x" * (COUNTED_BYTES if kind == "large" else 0)
            command = produce(number, value, partition=partition)
            match kind:
                case "written":
                    command["acks"] = "written"
                case "two":
                    command["records"].append({"value": value})
                    sent[partition].append(f'"{value}"'.encode())
                case "of a record":
                    command["records"][0]["partition"] = command.pop("partition")
                case "repeat":
                    command["idempotency_key"] = f"key-{number}"
                case "other":
                    command |= {"topic": "others", "partition": 0}
            if kind != "other":
                sent[partition].append(f'"{value}"'.encode())
            await talk.say(command)
            if random.random() < 0.2:
                for _ in range(random.randrange(12)):
                    await asyncio.sleep(0)
        await until(lambda: not talk.conversation.in_flight)
        assert [values_of(talk, partition) for partition in (0, 1)] == [sent[0], sent[1]]
        answered = [talk.said.get_nowait() for _ in range(talk.said.qsize())]
        assert sorted(answer["id"] for answer in answered) == list(range(120))
        assert all(answer["ok"] for answer in answered)


async def test_each_record_of_a_batch_that_is_refused_has_its_own_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking({"orders": 1}) as talk:

        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("full")

        with monkeypatch.context() as patch:
            patch.setattr(talk.broker, "begin_append", refuse)
            await talk.say(produce(1, "a"), produce(2, "b"), produce(3, "c", ack=False))
            assert len(talk.conversation.in_flight) == 3
            assert [(await talk.hear())["ok"] for _ in range(2)] == [True, True], "each by itself"
            await until(lambda: not talk.conversation.in_flight)
        assert values_of(talk, 0) == [b'"a"', b'"b"', b'"c"']
        talk.broker.error = DiskFull("full")
        await talk.say(produce(4, "d", partition=0), produce(5, "e", partition=0))
        answers = [await talk.hear() for _ in range(2)]
        assert [(answer["id"], answer["error_code"]) for answer in answers] == [(4, 50750), (5, 50750)]
        talk.broker.error = None
        assert (await talk.ask(produce(6, "f")))["offsets"] == [{"partition": 0, "offset": 3}]


@pytest.mark.parametrize("error", [AnswerLost("lost"), BrokerUnreachable("away")])
async def test_what_may_be_stored_elsewhere_or_was_waited_for_is_not_sent_again(
    error: StoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn_batches, "WAITED_S", 0.0)
    async with talking({"orders": 1}) as talk:
        talk.broker.error = error
        tries = 0
        original = talk.broker.append

        async def counted(*given: Any, **named: Any) -> Any:
            nonlocal tries
            tries += 1
            return await original(*given, **named)

        monkeypatch.setattr(talk.broker, "append", counted)
        await talk.say(produce(1, "a"), produce(2, "b"))
        assert [(await talk.hear())["ok"] for _ in range(2)] == [False, False]
        assert tries == 1


async def test_a_record_for_a_queue_that_was_sealed_meanwhile_goes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with talking({"orders": 1}) as talk:
        original, tries = talk.broker.append, 0

        async def sealed_once(*given: Any, **named: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise SealedQueue("sealed")
            return await original(*given, **named)

        monkeypatch.setattr(talk.broker, "append", sealed_once)
        await talk.say(produce(1, "a"), produce(2, "b"))
        assert [(await talk.hear())["offsets"][0]["offset"] for _ in range(2)] == [0, 1]
        assert tries == 3


async def test_a_socket_that_ends_leaves_what_it_has_sent_stored() -> None:
    server = Server({"orders": 1})
    async with server.talk() as other:
        async with server.talk() as talk:
            server.broker.hold = asyncio.Event()
            await talk.say(produce(1, "a"))
            await other.say(produce(2, "b"))
            await until(lambda: server.broker.append_count == 1)
            asyncio.get_running_loop().call_later(0.01, server.broker.hold.set)
            talk.closed_with = CloseCode.NORMAL
        assert not talk.conversation.in_flight
        assert (await other.hear())["offsets"] == [{"partition": 0, "offset": 1}]
        assert talk.said.empty()
    await server.sessions.close()


async def test_an_answer_that_the_transport_does_not_take_waits_and_is_in_flight_till_then() -> None:
    async with talking({"orders": 1}) as talk:
        talk.takes = asyncio.Event()
        await talk.say(produce(1, "a"), produce(2, "b"))
        await until(lambda: talk.broker.append_count == 1)
        await talk.quiet()
        talk.takes.set()
        assert [(await talk.hear())["id"] for _ in range(2)] == [1, 2]
        await until(lambda: not talk.conversation.in_flight)


@pytest.mark.parametrize("more_bytes", [0, 1])
async def test_a_command_that_takes_long_to_encode_shares_no_batch(more_bytes: int) -> None:
    async with talking({"orders": 1}) as talk:
        empty = len(orjson.dumps(produce(1, "")))
        value = "x" * (COUNTED_BYTES - 1 - empty + more_bytes)
        await talk.say(produce(1, value), produce(2, value))
        assert [(await talk.hear())["ok"] for _ in range(2)] == [True, True]
        assert talk.broker.append_count == 1 + more_bytes
