"""gateway.api.trail_files: lines of the trail on disk, across rolls, crashes and full disks, and reading them back."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import orjson
import pytest

from gateway.api import trail_files
from gateway.api.trail_files import (
    ACTIONS,
    DETAILS_BYTES_MAX,
    DIRECTORY,
    LINE_BYTES_MAX,
    REFUSED,
    RINGS,
    TEXT_CHARS_MAX,
    TOKENS,
    Act,
    Ring,
    RingSpec,
    encoded,
    read_page,
)
from store.files import File, OsFiles
from tests.simdisk import Fault, SimDisk

ROOT = Path("/data") / DIRECTORY
SMALL = RingSpec("actions", 3, 600)


def act(number: int, **fields: object) -> Act:
    return Act(action="topic.create", principal="ann", outcome="done", object={"topic": f"t{number}"}, **fields)  # type: ignore[arg-type]


def names(disk: SimDisk | OsFiles, root: Path = ROOT, *, limit: int = 1000) -> list[str]:
    """The topics of all lines, the oldest first, read page by page."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = read_page(root, disk, lambda row: True, cursor=cursor, limit=limit)
        found += [str(row["object"]["topic"]) for row in page.rows]  # type: ignore[index]
        cursor = page.next_cursor
        if cursor is None:
            return found[::-1]


def test_what_was_appended_is_durable_and_read_back_the_newest_first() -> None:
    disk = SimDisk()
    ring = Ring(ROOT, ACTIONS, disk)
    ring.append([(1000, act(0)), (1001, act(1))])
    ring.append([(1002, act(2))])
    assert disk.is_clean()
    page = read_page(ROOT, disk, lambda row: True, cursor=None, limit=10)
    assert [row["time_ms"] for row in page.rows] == [1002, 1001, 1000]
    assert page.rows[0] == {
        "time_ms": 1002, "action": "topic.create", "principal": "ann", "outcome": "done", "object": {"topic": "t2"},
        "details": {}, "token_id": None, "address": None, "status": None, "error_code": None, "error": None,
        "request_id": None,
    }  # fmt: skip
    assert page.next_cursor is None


@pytest.mark.parametrize("limit", [1, 2, 7, 1000])
def test_pages_of_any_size_show_every_line_once(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_files, "_BLOCK_BYTES", 100)
    disk = SimDisk()
    rings = [Ring(ROOT, spec, disk) for spec in RINGS]
    for number in range(40):
        rings[number % 3].append([(number, act(number))])
    assert names(disk, limit=limit) == [f"t{number}" for number in range(40)]


def test_lines_that_come_while_pages_are_read_are_in_none_of_them() -> None:
    disk = SimDisk()
    ring, other = Ring(ROOT, ACTIONS, disk), Ring(ROOT, REFUSED, disk)
    ring.append([(number, act(number)) for number in range(4)])
    other.append([(0, act(9))])
    page = read_page(ROOT, disk, lambda row: True, cursor=None, limit=2)
    ring.append([(50, act(50))])
    other.append([(50, act(51))])
    rest = read_page(ROOT, disk, lambda row: True, cursor=page.next_cursor, limit=10)
    assert [row["time_ms"] for row in rest.rows] == [1, 0, 0]


def test_a_ring_keeps_so_many_files_and_goes_on_in_the_newest_after_a_restart() -> None:
    disk = SimDisk()
    for number in range(30):
        Ring(ROOT, SMALL, disk).append([(number, act(number))])
    assert len(disk.list(ROOT)) == SMALL.files_max
    kept = names(disk)
    assert kept == [f"t{number}" for number in range(30 - len(kept), 30)]
    assert all(len(disk.contents(ROOT / name)) <= SMALL.file_bytes for name in disk.list(ROOT))


def test_what_fills_one_ring_takes_nothing_out_of_another() -> None:
    disk = SimDisk()
    Ring(ROOT, TOKENS, disk).append([(0, act(0))])
    ring = Ring(ROOT, SMALL, disk)
    for number in range(1, 30):
        ring.append([(number, act(number))])
    assert names(disk)[0] == "t0"


def test_times_never_fall_whatever_the_clock_does() -> None:
    disk = SimDisk()
    Ring(ROOT, ACTIONS, disk).append([(500, act(0)), (100, act(1))])
    Ring(ROOT, ACTIONS, disk).append([(200, act(2))])
    page = read_page(ROOT, disk, lambda row: True, cursor=None, limit=10)
    assert [row["time_ms"] for row in page.rows] == [500, 500, 500]
    assert [
        row["time_ms"] for row in read_page(ROOT, disk, lambda row: True, cursor=None, limit=9, from_ms=501).rows
    ] == []


def test_a_power_cut_takes_nothing_that_an_append_returned_from() -> None:
    for nth in range(1, 40):
        disk = SimDisk()
        disk.make_dirs(ROOT)
        disk.cut_power_at(nth)
        done = 0
        try:
            ring = Ring(ROOT, SMALL, disk)
            for number in range(8):
                ring.append([(number, act(number))])
                done += 1
        except OSError:
            pass
        for seed in range(10):
            after = disk.crash(Random(seed))
            read = names(after)
            assert set(read) >= {f"t{number}" for number in range(max(0, done - 4), done)}, (nth, seed)
            Ring(ROOT, SMALL, after).append([(100, act(100))])
            assert names(after)[-1] == "t100", (nth, seed)


@pytest.mark.parametrize("operation", ["create", "pwritev", "datasync", "sync_dir", "truncate", "remove"])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_append_that_failed_can_be_tried_again(operation: str, number: int) -> None:
    disk = SimDisk()
    ring = Ring(ROOT, SMALL, disk)
    for nth in range(20):
        disk.inject(Fault(operation, errno=number, partial_bytes=50))  # type: ignore[arg-type]
        acts = [(nth, act(nth))]
        try:
            ring.append(acts)
        except OSError:
            disk.faults.clear()
            ring.append(acts)
    kept = names(disk)
    assert kept == [f"t{nth}" for nth in range(20 - len(kept), 20)]
    assert len(kept) >= 4


def test_damage_is_passed_over() -> None:
    disk = SimDisk()
    ring = Ring(ROOT, ACTIONS, disk)
    ring.append([(number, act(number)) for number in range(3)])
    line = encoded(act(1), 1)
    at = disk.contents(ring.path).index(line)
    disk.overwrite(ring.path, at + 5, b"\0" * 20)
    assert names(disk) == ["t0", "t2"]


def test_no_line_can_be_forged_and_none_is_too_long() -> None:
    evil = '"}\n{"time_ms":1,"action":"topic.delete","principal":"bob"}\n\udcff\x1b[2J' * 400
    line = encoded(
        Act(
            action="topic.create", principal=evil, outcome="refused", object={evil: evil, "topic": evil}, token_id=evil,
            address=evil, error=evil, request_id=evil, details={evil: evil, "a": [evil[:50]]},
        ),
        5,
    )  # fmt: skip
    assert line.count(b"\n") == 1
    assert len(line) < LINE_BYTES_MAX
    row = orjson.loads(line)
    assert row["action"] == "topic.create"
    assert len(row["principal"]) == TEXT_CHARS_MAX


def test_details_are_cut_at_their_bound() -> None:
    room = DETAILS_BYTES_MAX - len(orjson.dumps({"a": [""]}))
    whole = {"a": ["x" * room]}
    assert orjson.loads(encoded(act(0, details=whole), 0))["details"] == whole
    assert orjson.loads(encoded(act(0, details={"b": 1, "a": ["x" * room]}), 0))["details"] == {"b": 1, "cut": True}


@pytest.mark.parametrize("levels", [10, 251, 252, 253, 254, 255, 1_000])
def test_a_detail_that_is_nested_too_deeply_is_cut(levels: int) -> None:
    nested = orjson.loads(b"[" * levels + b"]" * levels)
    shown = orjson.loads(encoded(act(0, details={"b": 1, "a": nested}), 0))["details"]
    assert shown == ({"b": 1, "a": nested} if levels <= 252 else {"b": 1, "cut": True})


def test_a_cursor_beyond_the_end_of_a_file_reads_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    Ring(ROOT, ACTIONS, disk).append([(number, act(number)) for number in range(3)])
    back_of_file = trail_files._Back._lines

    def bounded(self: trail_files._Back, file: File, end: int) -> object:
        assert end <= file.size()
        return back_of_file(self, file, end)

    monkeypatch.setattr(trail_files._Back, "_lines", bounded)
    page = read_page(ROOT, disk, lambda row: True, cursor=f"1.{10**12 - 1}-0.0-0.0-0.0", limit=10)
    assert [row["time_ms"] for row in page.rows] == [2, 1, 0]


def test_credentials_are_never_written_wherever_a_client_put_them() -> None:
    token = "mq_4f7k2q9xw3bd2_" + "aB-_5" * 8
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"
    line = encoded(act(0, request_id=f"x{token}", details={token: [jwt], "b": f"Bearer {jwt}"}), 0)
    assert token[20:] not in line.decode()
    assert "c2lnbmF0dXJl" not in line.decode()
    assert orjson.loads(line)["request_id"] == "x***"


@pytest.mark.parametrize("cursor", ["", "1", "1.1-1.1-1.1", "a.1-1.1-1.1-1.1", "1.1-1.1-1.1-1.1-1.1", "9" * 50])
def test_a_cursor_that_no_page_has_named_is_refused(cursor: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        read_page(ROOT, SimDisk(), lambda row: True, cursor=cursor, limit=1)


def test_one_page_reads_a_bounded_part_of_the_trail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trail_files, "SCAN_BYTES_MAX", 2_000)
    monkeypatch.setattr(trail_files, "_BLOCK_BYTES", 500)
    disk = SimDisk()
    Ring(ROOT, ACTIONS, disk).append([(number, act(number)) for number in range(100)])
    page = read_page(ROOT, disk, lambda row: row["time_ms"] == 0, cursor=None, limit=10)
    assert page.rows == []
    count, rows = 0, page.rows
    while page.next_cursor is not None:
        page = read_page(ROOT, disk, lambda row: row["time_ms"] == 0, cursor=page.next_cursor, limit=10)
        rows += page.rows
        count += 1
    assert [row["time_ms"] for row in rows] == [0]
    assert 5 < count < 30


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    ring = Ring(tmp_path / DIRECTORY, ACTIONS, OsFiles())
    ring.append([(1, act(1))])
    assert ring.path.stat().st_mode & 0o077 == 0
    assert names(OsFiles(), tmp_path / DIRECTORY) == ["t1"]
    ring.close()
