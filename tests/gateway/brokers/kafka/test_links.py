"""gateway.brokers.kafka.links and answers: what is written and made of answers, over a connection of aiokafka whose
socket is a list. All else of it is tested with a real Kafka (test_served.py, test_secured.py)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Coroutine, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import InvalidPartitionsError, KafkaConnectionError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from aiokafka.structs import TopicPartition

from gateway.brokers.kafka import links
from gateway.brokers.kafka.answers import ANSWER_BYTES_MAX, GROUP
from gateway.brokers.kafka.attached_links import SharedLinks
from gateway.brokers.kafka.codes import LEADER_NOT_AVAILABLE, NONE, NOT_LEADER, OUT_OF_ORDER, Stored
from gateway.brokers.kafka.links import ACKS_ALL, PRODUCE_TIMEOUT_MS, KafkaAddress, Links
from gateway.brokers.kafka.port import Refused, Unreached
from store.types import Buffer

NODE = 3


class Socket:
    """Of a connection: what was written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.parts: list[Buffer] = []
        self.broken: Exception | None = None
        self.protocol: Any = None
        self.transport = self
        self.is_closed = False

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def at_eof(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def writelines(self, parts: Iterable[Buffer]) -> None:
        if self.broken is not None:
            raise self.broken
        self.parts = [*parts]
        self.written.append(b"".join(self.parts))

    def get_extra_info(self, _: str) -> None: ...

    def close(self) -> None:
        self.is_closed = True


class Former:
    """aiokafka's protocol: what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def connection_lost(self, _: object) -> None:
        self.told.append("lost")

    def pause_writing(self) -> None:
        self.told.append("pause")

    def resume_writing(self) -> None:
        self.told.append("resume")


class Client:
    """aiokafka's client, of one node."""

    def __init__(self, version_max: int) -> None:
        self.connection = AIOKafkaConnection("127.0.0.1", 1, client_id="mq", request_timeout_ms=50)
        self.connection._versions = {0: (0, version_max), 1: (4, 17)}
        self.socket = self.connection._writer = Socket()
        self.socket.protocol = self.former = Former()
        self.connection._reader = self.socket
        self.connection._read_task = asyncio.get_running_loop().create_future()
        self._conns = {(NODE, GROUP): self.connection}
        self.cluster = self
        self.is_ready = self.is_known = True
        self.refreshed = self.bootstrapped = 0
        self.is_known_by_address = False

    def leader_for_partition(self, _: object) -> int:
        return NODE

    async def ready(self, _: int, *, group: object) -> bool:
        assert group is GROUP, "aiokafka sends nothing over it by itself"
        return self.is_ready

    async def force_metadata_update(self) -> bool:
        self.refreshed += 1
        return self.is_known

    async def bootstrap(self) -> None:
        self.bootstrapped += 1
        if not self.is_known_by_address:
            raise KafkaConnectionError("nobody is there")
        self.is_known = True

    def answer(self, code: int = 0, offset: int = 0) -> None:
        """To the first request that has none; of version 7."""
        row = struct.pack(">ihqqq", 5, code, offset, 1_000, 0)
        self.feed(self.frame(struct.pack(">ih", 1, 1) + b"t" + b"\0\0\0\1" + row + bytes(4)))

    def frame(self, message: bytes, number: int = 0) -> bytes:
        """A message as the answer to a request that has none."""
        correlation_id = self.connection._requests[number][0]
        return struct.pack(">ii", len(message) + 4, correlation_id) + message

    def feed(self, data: bytes, size_max: int = 1 << 30) -> None:
        """What comes over the connection, in pieces of at most that size."""
        at = 0
        while at < len(data):
            room = self.socket.protocol.get_buffer(-1)
            size = min(len(room), len(data) - at, size_max)
            room[:size] = data[at : at + size]
            at += size
            self.socket.protocol.buffer_updated(size)

    def break_off(self) -> None:
        self.connection.close()


def links_of(client: Client) -> Links:
    to_kafka = Links(KafkaAddress(servers=("127.0.0.1:1",)))
    to_kafka._clients["appends"] = to_kafka._clients["reads"] = client  # type: ignore[assignment]
    return to_kafka


async def lane_of(client: Client) -> Any:
    return await links_of(client).lane("t", 5)


@pytest.mark.parametrize("version_max", [3, 5, 7, 12])
async def test_a_batch_is_written_as_aiokafka_would_at_once(version_max: int) -> None:
    client, theirs = Client(version_max), Client(version_max)
    answer = (await lane_of(client)).send(b"head", memoryview(b"and rest"))
    request = ProduceRequest(None, ACKS_ALL, PRODUCE_TIMEOUT_MS, [("t", [(5, b"headand rest")])])
    theirs_answer = theirs.connection.send(request)
    assert client.socket.written == theirs.socket.written
    assert len(client.socket.written) == 1
    await asyncio.sleep(0)
    answer.cancel()
    theirs_answer.close()


async def test_answers_are_those_of_the_batches_in_order() -> None:
    client = Client(9)
    lane = await lane_of(client)
    answers = [lane.send(b"%d" % number) for number in range(3)]
    client.answer(offset=7)
    client.answer(OUT_OF_ORDER)
    client.answer(NOT_LEADER)
    assert await asyncio.gather(*answers) == [Stored(7, 1_000), OUT_OF_ORDER, NOT_LEADER]
    assert client.refreshed == 1, "another node may lead"


async def test_behind_what_is_lost_nothing_goes_over_the_same_lane() -> None:
    client = Client(9)
    lane = await lane_of(client)
    answers = [lane.send(b"a"), lane.send(b"b")]
    client.break_off()
    answers.append(lane.send(b"c"))
    assert await asyncio.gather(*answers) == [None] * 3
    assert len(client.socket.written) == 2
    assert client.refreshed == 3


async def test_a_batch_is_not_copied() -> None:
    client = Client(7)
    rest = memoryview(b"and rest")
    answer = (await lane_of(client)).send(b"head", rest)
    assert client.socket.parts[-1] is rest
    answer.cancel()


async def test_who_does_not_answer_is_left() -> None:
    client = Client(9)
    lane = await lane_of(client)
    assert await asyncio.gather(lane.send(b"a"), lane.send(b"b")) == [None, None]


async def test_what_is_late_ends_the_connection_and_each_batch_is_told_of_once() -> None:
    client = Client(9)
    lane = await lane_of(client)
    assert await asyncio.gather(lane.send(b"a"), lane.send(b"b")) == [None, None]
    assert client.connection._writer is None
    assert client.refreshed == 2
    assert await lane.send(b"c") is None, "without a connection"


async def test_nobody_waits_for_what_was_called_off() -> None:
    client = Client(9)
    lane = await lane_of(client)
    called_off, answer = lane.send(b"a"), lane.send(b"b")
    called_off.cancel()
    client.answer(offset=1)
    client.answer(offset=2)
    assert await answer == Stored(2, 1_000)
    lane.send(b"c").cancel()
    await asyncio.sleep(0.1)
    assert client.connection._writer is not None, "a timer of a batch that nobody waits for"
    assert client.refreshed == 0
    client.connection.close()


async def test_who_calls_off_a_batch_that_was_lost_waits_for_no_metadata() -> None:
    client = Client(9)
    lane = await lane_of(client)
    answer = lane.send(b"a")
    client.break_off()
    answer.cancel()
    for _ in range(3):
        await asyncio.sleep(0)
    assert answer.cancelled()
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("error", [ConnectionResetError("reset"), RuntimeError("the handler is closed")])
async def test_what_cannot_be_written_is_lost(error: Exception) -> None:
    client = Client(9)
    client.socket.broken = error
    lane = await lane_of(client)
    assert await lane.send(b"a") is None
    assert client.connection._writer is None
    assert not client.connection._requests


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(struct.pack(">ihqq", 6, 0, 0, 0), id="another partition"),
        pytest.param(struct.pack(">ihq", 5, 0, 0), id="half a row"),
    ],
)
async def test_an_answer_to_something_else_is_none(row: bytes) -> None:
    client = Client(7)
    answer = (await lane_of(client)).send(b"a")
    client.feed(client.frame(struct.pack(">ih", 1, 1) + b"t" + b"\0\0\0\1" + row))
    assert client.socket.is_closed
    assert await answer is None, "what became of it is not known"


FETCHED = struct.Struct(">ihqqq")


def fetched(version: int, batches: bytes, *, code: int = 0, aborted: Sequence[tuple[int, int]] | None = ()) -> bytes:
    """An answer to a request for batches of partition 5 of topic t."""
    return b"".join((
        bytes(4), struct.pack(">hi", 0, 0) if version >= 7 else b"", struct.pack(">ih", 1, 1), b"t\0\0\0\1",
        FETCHED.pack(5, code, 90, 80, 7),
        struct.pack(">i", -1 if aborted is None else len(aborted)),
        *(struct.pack(">qq", *one) for one in aborted or ()),
        struct.pack(">i", -1) if version >= 11 else b"", struct.pack(">i", len(batches) or -1), batches,
    ))  # fmt: skip


async def began(asked: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.create_task(asked)
    for _ in range(5):
        await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("version", range(5, 12))
@pytest.mark.parametrize("aborted", [None, (), ((4, 5), (1 << 40, 1 << 50))])
async def test_batches_are_asked_for_and_read_in_all_versions(version: int, aborted: Any) -> None:
    client = Client(7)
    client.connection._versions[1] = (4, version)
    task = await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 30, 1))
    [asked] = client.socket.written
    request = FetchRequest(30, 1, 1 << 20, 1, [("t", [(5, 42, 1 << 20)])]).prepare({1: (version, version)})
    assert asked.endswith(request.encode())
    assert asked[:4] == struct.pack(">i", len(asked) - 4)
    client.feed(client.frame(fetched(version, b"batches", aborted=aborted)))
    row = await task
    assert row[:5] == (5, 0, 90, 80, 7)
    assert (tuple(row.aborted), bytes(row.batches)) == (tuple(aborted or ()), b"batches")
    assert not row.batches.readonly, "they are the caller's"


@pytest.mark.parametrize("size_max", [1, 3, 7, 1_000, 1 << 17])
async def test_answers_are_cut_wherever_they_are(size_max: int) -> None:
    client = Client(7)
    bodies = [b"", b"a", bytes(range(256)) * 10, b"b" * 70_000, b"c"]
    tasks = [await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0)) for _ in bodies]
    client.feed(b"".join(client.frame(fetched(11, body), number) for number, body in enumerate(bodies)), size_max)
    assert [bytes((await task).batches) for task in tasks] == bodies
    assert not client.connection._requests
    assert client.connection._last_action > 0


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(struct.pack(">i", 3), id="smaller than a number"),
        pytest.param(struct.pack(">i", ANSWER_BYTES_MAX + 1), id="too large"),
        pytest.param(struct.pack(">ii", 4, 77), id="to another request"),
        pytest.param(struct.pack(">ii", 5, 1) + b"x", id="cut short"),
        pytest.param(struct.pack(">ii", 4 + len(fetched(11, b"abc")) - 1, 1) + fetched(11, b"abc")[:-1], id="half"),
        pytest.param(
            struct.pack(">ii", 4 + len(fetched(11, b"")), 1) + fetched(11, b"").replace(b"\1\0\1t", b"\2\0\1t"),
            id="of two topics",
        ),
    ],
)
async def test_what_is_no_answer_ends_the_connection(answer: bytes) -> None:
    client = Client(7)
    task = await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0))
    assert client.connection._requests[0][0] == 1
    client.feed(answer)
    assert client.socket.is_closed
    with pytest.raises(Unreached):
        await task
    client.feed(struct.pack(">ii", 4, 1))


async def test_an_answer_to_nothing_ends_the_connection() -> None:
    client = Client(7)
    await lane_of(client)
    client.feed(struct.pack(">ii", ANSWER_BYTES_MAX, 1), 8)
    assert not client.socket.is_closed, "as large as one may be"
    client = Client(7)
    await lane_of(client)
    client.feed(struct.pack(">ii", 4, 1))
    assert client.socket.is_closed


async def test_who_waits_for_no_answer_any_more_is_passed_over() -> None:
    client = Client(7)
    left, task = [await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0)) for _ in range(2)]
    left.cancel()
    await asyncio.wait([left])
    client.feed(client.frame(b"whatever") + client.frame(fetched(11, b"x"), 1))
    assert bytes((await task).batches) == b"x"


async def test_a_connection_that_ends_tells_aiokafka_and_all_who_wait() -> None:
    client = Client(7)
    task = await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0))
    protocol = client.socket.protocol
    protocol.pause_writing()
    protocol.resume_writing()
    assert not protocol.eof_received(), "it ends"
    protocol.connection_lost(None)
    assert client.former.told == ["pause", "resume", "lost"]
    assert client.connection._read_task.cancelled()
    with pytest.raises(Unreached):
        await task


async def test_batches_that_are_late_end_the_connection() -> None:
    client = Client(7)
    with pytest.raises(Unreached):
        await links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0)
    assert client.socket.is_closed


async def test_an_error_of_the_whole_answer_is_one_of_the_partition() -> None:
    client = Client(7)
    task = await began(links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0))
    client.feed(client.frame(bytes(4) + struct.pack(">hi", 70, 0) + bytes(4)))
    with pytest.raises(Refused, match="t") as refused:
        await task
    assert refused.value.code == 70


@pytest.mark.parametrize(("low", "high"), [(0, 4), (12, 17)])
async def test_from_a_kafka_of_other_versions_nothing_is_read(low: int, high: int) -> None:
    client = Client(7)
    client.connection._versions[1] = (low, high)
    with pytest.raises(Unreached, match="knows Fetch in versions"):
        await links_of(client)._fetch("t", 5, 42, 1 << 20, 0, 0)


@pytest.mark.parametrize(("low", "high"), [(0, 2), (8, 13)])
async def test_to_a_kafka_of_other_versions_there_is_no_lane(low: int, high: int) -> None:
    client = Client(7)
    client.connection._versions = {0: (low, high)}
    assert await lane_of(client) is None


async def test_metadata_that_cannot_be_had_are_asked_for_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(7)
    client.is_ready = False
    to_kafka = links_of(client)
    monkeypatch.setattr(links, "REFRESH_PAUSE_S", 3_600.0)
    async with asyncio.timeout(5):
        for number in range(3):
            assert await to_kafka.lane("t", 5) is None
            assert client.refreshed == number + 1
    client.is_known = False
    monkeypatch.setattr(links, "REFRESH_PAUSE_S", 0.1)
    begun_s = asyncio.get_running_loop().time()
    for _ in range(3):
        await to_kafka.lane("t", 5)
    assert asyncio.get_running_loop().time() - begun_s >= 0.2
    client.is_known = True
    await to_kafka.lane("t", 5)
    monkeypatch.setattr(links, "REFRESH_PAUSE_S", 3_600.0)
    async with asyncio.timeout(5):
        await to_kafka.lane("t", 5)
        await to_kafka.lane("t", 5)


async def test_when_the_brokers_that_were_named_last_are_away_the_addresses_of_the_settings_are_asked() -> None:
    client = Client(7)
    client.is_ready = client.is_known = False
    client.is_known_by_address = True
    to_kafka = links_of(client)
    async with asyncio.timeout(5):
        assert await to_kafka.lane("t", 5) is None
        assert (client.refreshed, client.bootstrapped) == (2, 1)
        client.is_ready = True
        assert await to_kafka.lane("t", 5) is not None
        client.is_ready = False
        await to_kafka.lane("t", 5)
    assert (client.refreshed, client.bootstrapped) == (3, 1), "who is known is not asked for by address"


async def test_an_administrator_whose_brokers_are_away_is_made_anew() -> None:
    closed = []

    class Admin:
        async def close(self) -> None:
            closed.append(self)

        async def delete_records(self, _: object) -> None:
            raise error

    to_kafka = links_of(Client(7))
    to_kafka._admin = Admin()  # type: ignore[assignment]
    error: Exception = InvalidPartitionsError()
    with pytest.raises(Unreached):
        await to_kafka.delete_before("t", 0, 5)
    assert to_kafka._admin is not None
    error = KafkaConnectionError("away")
    with pytest.raises(Unreached):
        await to_kafka.delete_before("t", 0, 5)
    assert to_kafka._admin is None
    assert len(closed) == 1


async def test_without_a_node_that_leads_there_is_no_lane() -> None:
    client = Client(9)
    client.is_ready = False
    assert await lane_of(client) is None
    links = Links(KafkaAddress(servers=("127.0.0.1:1",)))
    links._clients["appends"] = client  # type: ignore[assignment]
    assert await links.produce("t", 5, b"a") == LEADER_NOT_AVAILABLE


class Metadata:
    """aiokafka's client: who leads each partition, as of its last look at the metadata."""

    def __init__(self, leaders: dict[int, int]) -> None:
        self.leaders, self.seen = leaders, dict(leaders)
        self.cluster = self

    def leader_for_partition(self, at: TopicPartition) -> int:
        return self.seen[at.partition]

    async def force_metadata_update(self) -> bool:
        self.seen = dict(self.leaders)
        return True


async def test_who_waits_for_ends_is_told_that_leaders_are_others_and_then_asks_these(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaders = {0: 1, 1: 1}
    to_kafka = SharedLinks(KafkaAddress(servers=("127.0.0.1:1",)))
    to_kafka._clients["tails of t"] = Metadata(leaders)  # type: ignore[assignment]

    async def asked(_: object, node: int, request: Any) -> Any:
        [(topic, wanted)] = request._topics
        rows = [(partition, NONE if leaders[partition] == node else NOT_LEADER, 9, 8) for partition, *_ in wanted]
        return SimpleNamespace(topics=[(topic, rows)])

    monkeypatch.setattr(to_kafka, "_asked", asked)
    assert await to_kafka.wait_for_more("t", {0: 5, 1: 5}, wait_ms=1) == {0: 8, 1: 8}
    leaders[0] = 2
    for _ in ("by the node that led both", "by the metadata, which is looked at again"):
        with pytest.raises(Refused) as refused:
            await to_kafka.wait_for_more("t", {0: 5, 1: 5}, wait_ms=1)
        assert refused.value.code == NOT_LEADER
    for partition in leaders:
        assert await to_kafka.wait_for_more("t", {partition: 5}, wait_ms=1) == {partition: 8}
