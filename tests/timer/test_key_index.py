"""The rows of schedule keys in SQLite: durable when told so, and a damaged file is made again."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from pathlib import Path
from typing import NoReturn

import pytest

from store.files import OUT_OF_HANDLES
from store.types import Source
from timer.dump import dump
from timer.key_index import SqliteKeyIndex, check_file
from timer.ports import KeyRow, TopicKey

A, B = TopicKey(1, b"a"), TopicKey(1, b"b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def made(path: Path) -> SqliteKeyIndex:
    index = SqliteKeyIndex(path)
    index.commit({A: KeyRow(Source(100, 1), 5), B: KeyRow(Source(200, 0), 9)}, 7, before_s=None)
    return index


def test_there_is_no_file_before_the_first_commit(path: Path) -> None:
    index = SqliteKeyIndex(path)
    assert (index.is_used, index.queue_offset, path.exists()) == (False, -1, False)
    index.close()


def test_what_is_committed_is_there_in_the_next_life(path: Path) -> None:
    made(path)  # not closed: the process was killed
    index = SqliteKeyIndex(path)
    assert (index.is_used, index.queue_offset) == (True, 7)
    assert index.find([A, B, TopicKey(2, b"a")]) == {A: Source(100, 1), B: Source(200, 0)}
    index.close()


def test_a_row_replaces_that_of_its_key_and_those_of_past_slots_go(path: Path) -> None:
    index = made(path)
    index.commit({A: KeyRow(Source(300, 2), 20)}, 9, before_s=9)
    assert index.find([A, B]) == {A: Source(300, 2), B: Source(200, 0)}
    index.commit({}, 9, before_s=10)
    assert index.find([A, B]) == {A: Source(300, 2)}
    index.close()


def test_reset_forgets_all(path: Path) -> None:
    index = made(path)
    index.reset()
    assert (index.is_used, index.queue_offset, list(path.parent.iterdir())) == (False, -1, [])
    index.commit({}, 3, before_s=None)
    assert index.find([A]) == {}
    index.close()


@pytest.mark.parametrize("content", [b"no database at all, but bytes", b"\0" * 8192], ids=["text", "zeros"])
def test_a_file_that_is_no_database_counts_as_none(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    index = SqliteKeyIndex(path)
    assert (index.is_used, index.queue_offset) == (False, -1)
    index.reset()
    assert not path.exists()


def test_another_version_counts_as_none(path: Path) -> None:
    made(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 2")
    connection.close()
    index = SqliteKeyIndex(path)
    assert (index.is_used, index.queue_offset) == (False, -1)
    index.close()


def test_a_file_found_damaged_is_an_error_once_and_gone_for_the_next_start(path: Path) -> None:
    index = SqliteKeyIndex(path)
    index.commit({TopicKey(1, b"%05d" % n): KeyRow(Source(n, 0), n) for n in range(5000)}, 7, before_s=None)
    index.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)  # all pages but the first
    path.write_bytes(content)
    index = SqliteKeyIndex(path)
    if index.is_used:
        with pytest.raises(OSError, match="schedule keys") as caught:
            index.find([TopicKey(1, b"00001")])
        assert caught.value.errno == errno.EIO
    index.close()
    assert not path.exists()


def test_without_handles_nothing_is_damaged_and_all_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> NoReturn:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN | 1 << 8
        raise error

    rows = {A: KeyRow(Source(100, 1), 5)}
    index = SqliteKeyIndex(path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", refused)
        with pytest.raises(OSError, match="unable to open") as caught:
            index.commit(rows, 7, before_s=None)
        assert caught.value.errno in OUT_OF_HANDLES
    index.commit(rows, 7, before_s=None)
    index.close()
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", refused)
        with pytest.raises(OSError, match="unable to open"):
            SqliteKeyIndex(path)
    index = SqliteKeyIndex(path)
    assert (index.queue_offset, index.find([A])) == (7, {A: Source(100, 1)})
    index.close()


def test_a_full_disk_is_told_as_such_and_changes_nothing(path: Path) -> None:
    index = made(path)
    assert index._connection is not None
    (pages,) = index._connection.execute("PRAGMA page_count").fetchone()
    index._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="full") as caught:
        index.commit({TopicKey(1, b"%05d" % n): KeyRow(Source(n, 0), n) for n in range(5000)}, 8, before_s=99)
    assert caught.value.errno == errno.ENOSPC
    assert index.find([A]) == {A: Source(100, 1)}
    index._connection.execute("PRAGMA max_page_count = 100000")
    index.commit({}, 8, before_s=None)
    index.close()


async def test_threads_take_turns(path: Path) -> None:
    index = made(path)

    def work(number: int) -> None:
        key = TopicKey(3, b"%d" % number)
        index.commit({key: KeyRow(Source(number, 0), 1)}, number, before_s=None)
        assert index.find([key]) == {key: Source(number, 0)}

    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(50)))
    index.close()


def test_rows_are_dumped_and_a_sound_file_is_sound(path: Path) -> None:
    index = made(path)
    for _ in range(2):  # with its write-ahead log, as a kill leaves it, and without
        assert list(dump(path)) == [
            {"version": 1, "queue_offset": 7},
            {"topic_id": 1, "schedule_key": "a", "entry_position": 100, "record_index": 1, "slot_s": 5},
            {"topic_id": 1, "schedule_key": "b", "entry_position": 200, "record_index": 0, "slot_s": 9},
        ]
        assert check_file(path) is None
        index.close()


def test_damage_is_told(path: Path) -> None:
    made(path).close()
    content = path.read_bytes()
    path.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    assert check_file(path) is not None
    assert "damage" in list(dump(path))[-1]
    path.write_bytes(b"something else")
    assert check_file(path) == "it is no database"
    with pytest.raises(ValueError, match="is not a timer log"):
        dump(path)
