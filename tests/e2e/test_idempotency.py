"""Repeated sends against a real server, and kill -9 under clients that retry everything they got no answer to.

MQ_KILL_CYCLES=500 makes the loop a long run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from uuid import uuid4

import aiohttp
import orjson
import pytest
import pytest_asyncio

from store.record_batch import Record, encode
from tests import kafka_only
from tests.e2e.server import SMALL_FILES, Server
from tests.waiting import PATIENCE_S, until

CYCLES = int(os.environ.get("MQ_KILL_CYCLES", "6"))
SEED = int(os.environ.get("MQ_TORTURE_SEED", str(random.randrange(2**32))))
JSON_V2 = "application/vnd.kafka.json.v2+json"
BATCH = "application/vnd.mq.batch"
PARTITIONS = 3
Json = dict[str, object]

pytestmark = pytest.mark.asyncio(loop_scope="module")


class Rig:
    """A server, a client of it, and a topic of the test's own."""

    def __init__(self, server: Server, session: aiohttp.ClientSession, topic: str) -> None:
        self.server = server
        self.session = session
        self.topic = topic
        self.path = f"/topics/{topic}"

    async def post(
        self, path: str, body: object, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Json, Mapping[str, str]]:
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        sent = {"Content-Type": BATCH if isinstance(body, bytes) else JSON_V2, **(headers or {})}
        async with self.session.post(f"{self.server.url}{path}", data=data, headers=sent) as answer:
            return answer.status, orjson.loads(await answer.read()), answer.headers

    async def put_topic(self, name: str) -> None:
        async with self.session.put(
            f"{self.server.url}/mq/v1/topics/{name}", json={"partitions": PARTITIONS}
        ) as answer:
            assert answer.status in (200, 201), await answer.text()

    async def values(self, topic: str, partition: int) -> list[object]:
        found: list[object] = []
        offset = 0
        while True:
            url = f"{self.server.url}/topics/{topic}/partitions/{partition}/records?offset={offset}"
            async with self.session.get(url, headers={"Accept": JSON_V2}) as answer:
                records = orjson.loads(await answer.read())
                assert answer.status == 200, records
                offset = int(answer.headers["Mq-Next-Offset"])
            if not records:
                return found
            found += [record["value"] for record in records]

    async def all_values(self, topic: str) -> list[object]:
        return [value for partition in range(PARTITIONS) for value in await self.values(topic, partition)]

    async def restart(self) -> None:
        await self.server.kill()
        await self.server.start()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    """One for all tests of this file: most of what each would take is its start."""
    server = Server(tmp_path_factory.mktemp("idempotency") / "data", SMALL_FILES)
    try:
        await server.start()
        yield server
        assert await server.stop() == 0, server.log()
    finally:
        await server.end()


@pytest_asyncio.fixture(loop_scope="module")
async def rig(server: Server) -> AsyncIterator[Rig]:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
        made = Rig(server, session, f"t-{uuid4()}")
        await made.put_topic(made.topic)
        yield made


def offsets(answer: Json) -> list[Json]:
    found = answer["offsets"]
    assert isinstance(found, list)
    return found


def originals(answer: Json) -> list[Json]:
    return [{name: value for name, value in one.items() if name != "duplicate"} for one in offsets(answer)]


async def test_a_key_is_answered_the_same_before_and_after_a_crash(rig: Rig) -> None:
    body = {"records": [{"key": f"k{n}", "value": n} for n in range(20)] + [{"value": 99, "delay_ms": 3_600_000}]}
    key = {"Idempotency-Key": f'"{rig.topic}"'}
    status, first, headers = await rig.post(rig.path, body, key)
    assert status == 200
    assert "Idempotent-Replayed" not in headers
    for _ in range(2):
        status, again, headers = await rig.post(rig.path, body, key)
        assert (status, headers["Idempotent-Replayed"]) == (200, "true")
        assert originals(again) == offsets(first)
        assert all(one["duplicate"] for one in offsets(again))
        await rig.restart()
    status, refusal, _ = await rig.post(rig.path, {"records": [{"value": 1}]}, key)
    assert (status, refusal["error_code"]) == (422, 42254)
    assert sorted(await rig.all_values(rig.topic)) == list(range(20))  # type: ignore[type-var]


@pytest.mark.embedded(
    "a msg_id is known in its own partition only on a Kafka cluster, once its owner was started again"
)
async def test_a_torn_request_is_completed(rig: Rig) -> None:
    """What a crash tears is seldom seen; a message id that is known already leaves the same hole."""
    await rig.post(rig.path, {"records": [{"value": 1, "msg_id": "one", "partition": 0}]})
    body = {"records": [{"value": n, "msg_id": f"{n}" if n != 1 else "one", "partition": n % 2} for n in range(5)]}
    status, first, headers = await rig.post(rig.path, body, {"Idempotency-Key": rig.topic})
    assert status == 200
    assert [one.get("duplicate", False) for one in offsets(first)] == [False, True, False, False, False]
    assert offsets(first)[1]["partition"] == 0
    assert "Idempotent-Replayed" not in headers
    await rig.restart()
    status, again, headers = await rig.post(rig.path, body, {"Idempotency-Key": rig.topic})
    assert (status, headers["Idempotent-Replayed"]) == (200, "true")
    assert originals(again) == originals(first)
    assert sorted(await rig.all_values(rig.topic)) == [0, 1, 2, 3, 4]  # type: ignore[type-var]


async def test_equal_requests_at_once_store_one(rig: Rig) -> None:
    body = {"records": [{"key": f"k{n}", "value": n} for n in range(10)]}
    answers = await asyncio.gather(*(rig.post(rig.path, body, {"Idempotency-Key": rig.topic}) for _ in range(10)))
    assert {status for status, _, _ in answers} == {200}
    assert sum("Idempotent-Replayed" not in headers for _, _, headers in answers) == 1
    assert len({orjson.dumps(originals(answer)) for _, answer, _ in answers}) == 1
    assert sorted(await rig.all_values(rig.topic)) == list(range(10))  # type: ignore[type-var]


async def test_a_message_id_names_one_record_of_a_topic(rig: Rig) -> None:
    await rig.put_topic(f"{rig.topic}-u")
    record = {"value": 1, "msg_id": "a"}
    _, first, _ = await rig.post(rig.path, {"records": [record]})
    _, twice, _ = await rig.post(rig.path, {"records": [{"value": 2, "msg_id": "b"}, record, record]})
    assert [one.get("duplicate", False) for one in offsets(twice)] == [False, True, True]
    assert originals(twice)[1:] == [*offsets(first), *offsets(first)]
    _, other, _ = await rig.post(f"{rig.path}-u", {"records": [record]})
    assert "duplicate" not in offsets(other)[0]
    assert sorted(await rig.all_values(rig.topic)) == [1, 2]  # type: ignore[type-var]


async def test_a_numbered_producer_stores_each_batch_once(rig: Rig) -> None:
    def batch(number: int) -> bytes:
        return bytes(encode([Record(None, b"%d" % (10 * number + n), 1) for n in range(3)]))

    async def send(number: int, path: str = f"{rig.path}/partitions/1") -> tuple[int, Json]:
        headers = {"Mq-Producer": f"job/{rig.topic}", "Mq-Sequence": str(number)}
        status, answer, _ = await rig.post(path, batch(number), headers)
        return status, answer

    for number in range(8):
        status, answer = await send(number)
        assert status == 200
        assert offsets(answer) == [{"partition": 1, "offset": 3 * number, "record_count": 3}]
    await rig.restart()
    for number, offset in ((0, None), (2, None), (3, 9), (7, 21)):
        _, answer = await send(number)
        assert offsets(answer) == [{"partition": 1, "offset": offset, "record_count": 3, "duplicate": True}]
    assert (await send(20))[0] == 200
    status, refusal = await send(15)
    assert (status, refusal["error_code"]) == (409, 40956)
    assert (await send(30, rig.path))[0] == 422
    assert len(await rig.values(rig.topic, 1)) == 9 * 3


async def retry_for_ever(rig: Rig, client: int, sent: list[str], stopping: asyncio.Event) -> None:
    """Send requests of every kind; repeat each until it is answered, with the same identity."""
    rng = random.Random(f"{SEED} {client}")
    number = 0
    while not stopping.is_set():
        number += 1
        names = [f"{client}-{number}-{n}" for n in range(rng.choice((1, 5, 40)))]
        kind = rng.choice(("key", "msg_id", "number"))
        records: list[Json] = [{"key": name, "value": name} for name in names]
        headers: dict[str, str] = {}
        path = rig.path
        if kind == "key":
            headers["Idempotency-Key"] = f"{client}-{number}"
            if rng.random() < 0.3 and not kafka_only.is_asked_for():  # which refuses delayed records with ids
                records[0]["delay_ms"] = rng.randrange(1, 500)
        elif kind == "msg_id":
            records = [{**record, "msg_id": record["value"]} for record in records]
        else:
            path = f"{rig.path}/partitions/{client % PARTITIONS}"
            headers |= {"Mq-Producer": f"p{client}", "Mq-Sequence": str(number)}
        while True:
            try:
                status, answer, _ = await rig.post(path, {"records": records}, headers)
            except (aiohttp.ClientError, TimeoutError, OSError):
                await asyncio.sleep(0.02)
                continue
            if status == 503:
                await asyncio.sleep(0.02)
                continue
            assert status == 200, answer
            sent += names
            break


async def test_kill_9_under_clients_that_retry_loses_and_doubles_nothing(rig: Rig) -> None:
    sent: list[str] = []
    stopping = asyncio.Event()
    rng = random.Random(SEED)
    print(f"seed {SEED}")
    async with asyncio.TaskGroup() as group:
        for client in range(6):
            group.create_task(retry_for_ever(rig, client, sent, stopping))
        for cycle in range(1, CYCLES + 1):
            await asyncio.sleep(rng.uniform(0.05, 0.5))
            await until(lambda enough=50 * cycle: len(sent) > enough, pause_s=0.01)
            await rig.restart()
        await asyncio.sleep(0.2)
        stopping.set()
    assert len(sent) == len(set(sent))
    async with asyncio.timeout(PATIENCE_S):
        while len(found := Counter(await rig.all_values(rig.topic))) < len(sent):  # noqa: ASYNC110 - the last delayed ones are still to come
            await asyncio.sleep(0.1)
    print(f"{CYCLES} kills, {len(sent)} records sent until answered, {found.total()} there")
    assert found == Counter(sent)
