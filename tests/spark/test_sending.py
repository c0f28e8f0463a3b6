"""What a task sends: cut by its rows alone, in order, and once whatever happens to the answers."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Sequence
from functools import partial

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark_mq import sending
from pyspark_mq.client import Client, ConnectionPool, Endpoint
from pyspark_mq.errors import MqError, NotRepeatable, ServerError
from pyspark_mq.identity import Identity, Keyed, Numbered
from pyspark_mq.rows import Column
from pyspark_mq.sending import BATCH_BYTES, BATCH_RECORDS, DELAYED_RECORDS, IN_FLIGHT, STRIDE, Counts, write

from store import record_batch
from store.dedup.producers import SEQUENCES_KEPT
from store.limits import BATCH_BYTES_MAX, BATCH_RECORDS_MAX, RECORD_BYTES_MAX
from tests.spark.conftest import Server, values
from tests.spark.fake_server import CUT, DISCONNECT, LOST, Answer, FakeServer, serving

KEYS_AND_VALUES = (Column("key", 0), Column("value", 1))
Pair = tuple[bytes | None, bytes]


@pytest.fixture(scope="module")
def running() -> Iterator[FakeServer]:
    with serving() as fake:
        yield fake


@pytest.fixture
def server(running: FakeServer) -> FakeServer:
    """Topic t of three partitions, nothing sent, no faults."""
    running.create("t", 3)
    running.sent.clear()
    running.post_faults.clear()
    return running


def batches(pairs: Sequence[Pair], size: int) -> list[pa.RecordBatch]:
    keys, values = [key for key, _ in pairs], [value for _, value in pairs]
    whole = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    return [whole.slice(start, size) for start in range(0, len(pairs), size)]


def send(
    server: FakeServer | Server,
    pairs: Sequence[Pair],
    *,
    topic: str = "t",
    size: int = 10_000,
    identity: Identity | None = None,
    **more: bool,
) -> Counts:
    endpoint = Endpoint(urls=(server.url,), retry_timeout_ms=5000)
    return write(
        batches(pairs, size),
        KEYS_AND_VALUES,
        topic=topic,
        identity=identity or Numbered("q", 0, 0),
        new_client=partial(Client, endpoint, pool=ConnectionPool(), sleep=lambda _: None),
        now_ms=lambda: 1000,
        **more,
    )


def stored(server: FakeServer) -> dict[int, list[Pair]]:
    """Keys and values by partition, in the order in which they came."""
    found: dict[int, list[Pair]] = {0: [], 1: [], 2: []}
    for path, _, body in server.sent:
        assert path.startswith("/topics/t/partitions/")
        record_batch.check(body)
        found[int(path.rsplit("/", 1)[1])] += [(record.key, record.value) for record in record_batch.decode(body)]
    return found


PAIRS = st.lists(st.tuples(st.none() | st.binary(max_size=3), st.binary(max_size=60)), min_size=1, max_size=60)


@given(PAIRS, st.integers(1, 70), st.integers(1, 70))
@settings(max_examples=60, deadline=None)
def test_batches_depend_on_the_rows_and_not_on_how_they_come(
    running: FakeServer, pairs: list[Pair], size: int, other_size: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sending, "BATCH_BYTES", 300)
        patch.setattr(sending, "BATCH_RECORDS", 9)
        patch.setattr(sending, "STRIDE", 4)
        running.create("t", 3)
        running.sent.clear()
        assert send(running, pairs, size=size) == Counts(len(pairs), 0)
        first, seen = list(running.sent), stored(running)
        assert send(running, pairs, size=other_size) == Counts(0, len(pairs))
        assert running.sent == first
        for partition, records in seen.items():
            by_key = [(key, value) for key, value in records if key is not None]
            assert by_key == [
                (key, value) for key, value in pairs if key is not None and zlib.crc32(key) % 3 == partition
            ]
        assert sorted(value for records in seen.values() for _, value in records) == sorted(v for _, v in pairs)


def test_a_batch_ends_at_its_limits(server: FakeServer) -> None:
    assert BATCH_RECORDS <= BATCH_RECORDS_MAX
    assert BATCH_BYTES + RECORD_BYTES_MAX < BATCH_BYTES_MAX
    send(server, [(b"k", b"")] * (BATCH_RECORDS + 1))
    assert [record_batch.record_count(body) for _, _, body in server.sent] == [BATCH_RECORDS, 1]
    server.sent.clear()
    row = BATCH_BYTES // 4 - 1 - sending.row_bytes(batches([(b"k", b"")], 1)[0])[0] + 1
    send(server, [(b"k", b"v" * int(row))] * 5)
    assert [record_batch.record_count(body) for _, _, body in server.sent] == [4, 1]


def test_rows_without_a_key_go_in_turn_and_each_task_and_epoch_begins_elsewhere(server: FakeServer) -> None:
    rows: list[Pair] = [(None, b"%d" % n) for n in range(2 * STRIDE + 1)]
    send(server, rows, identity=Numbered("q", 1, 4))
    assert {p: len(records) for p, records in stored(server).items()} == {2: STRIDE, 0: STRIDE, 1: 1}
    server.sent.clear()
    send(server, rows[:1], identity=Numbered("q", 1, 5))
    assert {p for p, records in stored(server).items() if records} == {0}


@pytest.mark.parametrize("identity", [Numbered("q", 0, 7), Keyed("job", 0, 99)])
def test_lost_answers_store_nothing_twice(server: FakeServer, identity: Identity) -> None:
    busy = Answer(503, {"error_code": 50351, "message": "busy", "retriable": True})
    server.post_faults = [busy, LOST, DISCONNECT, CUT, LOST, busy]
    rows: list[Pair] = [(b"%d" % n, b"v") for n in range(3 * IN_FLIGHT)]
    counts = send(server, rows, identity=identity)
    assert counts.stored + counts.repeated == len(rows)
    assert sorted(key for records in stored(server).values() for key, _ in records) == sorted(key for key, _ in rows)


def test_batches_of_a_partition_keep_the_order_of_the_rows(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BATCH_RECORDS", 2)
    server.post_faults = [LOST] * 5
    rows: list[Pair] = [(b"%d" % (n % 5), b"%d" % n) for n in range(100)]
    send(server, rows)
    for records in stored(server).values():
        assert [int(value) for _, value in records] == sorted(int(value) for _, value in records)


def test_sorted_rows_are_the_same_batches_in_any_order(server: FakeServer) -> None:
    rows: list[Pair] = [(None if n % 3 else b"%d" % (n % 4), b"%d" % n) for n in range(50)]
    send(server, rows, sort_rows=True)
    assert send(server, rows[::-1], sort_rows=True, size=7) == Counts(0, 50)


@pytest.mark.parametrize(("status", "code"), [(409, 40956), (422, 42254)])
def test_a_repeat_with_other_rows_is_an_error_that_says_what_to_do(server: FakeServer, status: int, code: int) -> None:
    server.post_faults = [Answer(status, {"error_code": code, "message": "no", "retriable": False})]
    with pytest.raises(NotRepeatable, match=r"t/\d: .*sortRows=true.*writeId"):
        send(server, [(b"k", b"v")])


def test_fewer_other_rows_are_no_repeat_though_the_server_remembers_none_of_their_batches(
    mq: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BATCH_RECORDS", 1)
    mq.create("fewer", 1)

    def send_numbers(numbers: range, epoch: int = 1) -> Counts:
        pairs: list[Pair] = [(None, b"%d" % n) for n in numbers]
        return send(mq, pairs, topic="fewer", identity=Numbered("q", 0, epoch))

    count = 2 * SEQUENCES_KEPT
    assert send_numbers(range(count)) == Counts(count, 0)
    assert send_numbers(range(count)) == Counts(0, count), "a true repeat ends with batches that are remembered"
    assert send_numbers(range(SEQUENCES_KEPT + 1)) == Counts(0, SEQUENCES_KEPT + 1)
    with pytest.raises(NotRepeatable, match=r"fewer/0: .*writeId.*of fewer rows than before"):
        send_numbers(range(100, 100 + SEQUENCES_KEPT))
    assert values(mq, "fewer") == list(range(count))
    assert send_numbers(range(count, count + SEQUENCES_KEPT), epoch=2) == Counts(SEQUENCES_KEPT, 0)
    with pytest.raises(NotRepeatable, match="of an earlier epoch"):
        send_numbers(range(count))


def test_a_refusal_ends_the_task(server: FakeServer) -> None:
    server.post_faults = [Answer(413, {"error_code": 41350, "message": "too large", "retriable": False})]
    with pytest.raises(ServerError, match="too large"):
        send(server, [(b"k", b"v")])


def test_an_unknown_topic_or_partition_is_named(server: FakeServer) -> None:
    del server.topics["t"]
    server.create("other")
    with pytest.raises(MqError, match="no topic t: create it first; its topics are other"):
        send(server, [(b"k", b"v")])
    batch = pa.record_batch({"value": ["v"], "partition": [1]})
    with pytest.raises(MqError, match="other has partitions 0 to 0; a row says partition 1"):
        write(
            [batch],
            (Column("value", 0), Column("partition", 1)),
            topic="other",
            identity=Numbered("q", 0, 0),
            new_client=lambda: Client(Endpoint(urls=(server.url,))),
        )


def delayed(server: FakeServer, count: int, **more: pa.Array) -> Counts:
    columns = {"value": pa.array([b"%d" % n for n in range(count)]), **more}
    return write(
        [pa.record_batch(columns)],
        tuple(Column(name, index) for index, name in enumerate(columns)),
        topic="t",
        identity=Numbered("q", 0, 2),
        new_client=lambda: Client(Endpoint(urls=(server.url,)), pool=ConnectionPool()),
    )


def test_delayed_rows_are_sent_as_json_with_a_key(server: FakeServer) -> None:
    headers = pa.array([[{"key": "h", "value": b"x"}, {"key": "n", "value": None}]], pa.list_(
        pa.struct([("key", pa.string()), ("value", pa.binary())])
    ))  # fmt: skip
    counts = delayed(
        server, 1, key=pa.array(["k"]), delayMs=pa.array([5000]), tag=pa.array(["t"]), headers=headers,
        timestamp=pa.array([7000], pa.timestamp("us", "UTC")),
    )  # fmt: skip
    assert counts == Counts(1, 0)
    ((path, identity, body),) = server.sent
    assert (path, identity) == ("/topics/t", {"Idempotency-Key": '"q/0/2/0"'})
    assert json.loads(body) == {
        "records": [
            {
                "value": "MA==",
                "key": "aw==",
                "delay_ms": 5000,
                "tag": "t",
                "headers": [{"key": "h", "value": "eA=="}, {"key": "n"}],
                "timestamp": 7,
            }
        ]
    }


def test_a_request_with_delayed_rows_ends_at_its_limit(server: FakeServer) -> None:
    count = DELAYED_RECORDS + 1
    delayed(server, count, delayMs=pa.array([1] * count))
    sizes = [len(json.loads(body)["records"]) for _, _, body in server.sent]
    assert sorted(sizes) == [1, DELAYED_RECORDS]
    assert delayed(server, count, delayMs=pa.array([1] * count)) == Counts(0, count)


def test_a_row_has_one_due_time(server: FakeServer) -> None:
    with pytest.raises(MqError, match="both a delayMs and a deliverAt"):
        delayed(server, 1, delayMs=pa.array([1]), deliverAt=pa.array([2]))
