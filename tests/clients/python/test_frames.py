"""mq.frames, mq.progress, mq.credit: pure parts, each alone."""

from __future__ import annotations

import contextlib
import random

import msgspec
import pytest
from mq.credit import Window
from mq.errors import Refused, Undecodable
from mq.frames import read_binary, read_text, write_binary
from mq.progress import Progress, ProgressTable, partitions_of, read_cursor, write_cursor


def test_a_binary_frame_is_read_as_it_was_written() -> None:
    messages = [
        {"topic": "t", "partition": 0, "offset": 4, "key_len": 2, "value_len": 5, "tag": "paid", "raw_key": True},
        {"topic": "t", "partition": 0, "offset": 5, "key_len": None, "value_len": None},
        {"topic": "t", "partition": 0, "offset": 6, "value_len": 0},
    ]
    header = msgspec.json.encode({"op": "messages", "sub": "s", "seq": 1, "messages": messages, "unknown": [1]})
    frame = read_binary(write_binary(header, [b"u1", b"hello"]))
    assert [(m.key, m.value, m.value_bytes, m.tag) for m in frame.messages] == [
        ("u1", "hello", b"hello", "paid"), (None, None, None, None), (None, "", b"", None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "lengths", [(2, 4), (2, 6), (None, 5), (-1, 8), (10**20, 1), ("2", 5)], ids=str
)  # fmt: skip
def test_a_payload_that_is_not_as_long_as_its_parts_is_refused(lengths: tuple[object, object]) -> None:
    messages = [{"topic": "t", "partition": 0, "offset": 4, "key_len": lengths[0], "value_len": lengths[1]}]
    header = msgspec.json.encode({"op": "messages", "sub": "s", "seq": 1, "messages": messages})
    with pytest.raises(Undecodable):
        read_binary(write_binary(header, [b"u1", b"hello"]))


def test_nonsense_is_undecodable_and_nothing_else() -> None:
    good = write_binary(b'{"op":"x"}', [b"abc"])
    dice = random.Random(7)
    for _ in range(3_000):
        data = bytearray(good[: dice.randrange(len(good) + 1)])
        for _ in range(dice.randrange(4)):
            if data:
                data[dice.randrange(len(data))] = dice.randrange(256)
        for read in (read_binary, read_text):
            with contextlib.suppress(Undecodable):
                read(bytes(data))


def test_a_refusal_has_everything_that_was_said() -> None:
    error = read_text(
        b'{"id":1,"ok":false,"error_code":42250,"message":"no","retriable":true,"retry_after_ms":7,"validation_errors":["a"]}'
    ).refusal()
    assert isinstance(error, Refused)
    assert (error.code, error.retriable, error.retry_after_ms, error.validation_errors) == (42250, True, 7, ("a",))
    assert str(error) == "no [42250]"


def test_a_cursor_is_read_as_the_server_writes_it() -> None:
    assert read_cursor("") == []
    assert read_cursor("orders:0=101;a.b:12=0") == [("orders", 0, 101), ("a.b", 12, 0)]
    for wrong in ("orders", "orders:0", "orders:0=x", ":0=1", "a:0=1;", "a:-1=0"):
        with pytest.raises(Undecodable):
            read_cursor(wrong)
    table = ProgressTable()
    for topic, partition, offset in read_cursor("b:1=2;a:0=9"):
        table.add(topic, partition, offset)
    assert write_cursor(table, lambda progress: progress.next) == "b:1=2;a:0=9"
    assert partitions_of(table) == {"b": [1], "a": [0]}


def test_a_place_goes_on_where_the_consumer_is_and_back_when_the_group_was_set_back() -> None:
    progress = Progress("t", 0, 10)
    progress.given, progress.done, progress.committed, progress.next = 20, 18, 15, 25
    progress.rejoin(15)
    assert (progress.next, progress.given, progress.done, progress.committed) == (15, 20, 18, 15)
    progress.rejoin(3)
    assert (progress.next, progress.given, progress.done, progress.committed) == (3, 3, 3, 3)


def test_a_window_never_grants_more_than_its_size_and_loses_no_credit() -> None:
    dice = random.Random(3)
    for _ in range(300):
        window = Window(dice.randrange(1, 50))
        server, on_the_way, held, returning = window.opened(), 0, 0, 0
        for _ in range(200):
            step = dice.randrange(6)
            if step == 0 and server > 0:
                count = dice.randrange(1, server + 1)
                server, on_the_way = server - count, on_the_way + count
            elif step == 1 and on_the_way:
                window.received(on_the_way)
                held, on_the_way = held + on_the_way, 0
            elif step == 2 and held:
                count = dice.randrange(1, held + 1)
                window.taken(count)
                held -= count
                if window.is_due:
                    returning += window.returned()
            elif step == 3:
                server, returning = server + returning, 0
            elif step == 4:  # the connection is cut: permits and frames on their way are lost, the session goes on
                server, on_the_way, returning = server + on_the_way, 0, 0
                window.resumed(server)
                returning += window.returned()
            elif step == 5 and dice.random() < 0.1:  # the session is lost
                on_the_way = returning = 0
                server = window.opened()
            assert 0 <= server + on_the_way + held + returning <= window.size
        window.received(on_the_way)
        window.taken(held + on_the_way)
        assert server + returning + window.returned() == window.size
