"""The trail on disk: who changed what, a line of JSON each, in rings of files that only the server's user may read.

    DATA/audit/actions-00000007.jsonl      what was done, or has failed
    DATA/audit/schedules-00000001.jsonl    schedules cancelled, moved and fired, recurring ones changed: senders do
                                            that by the thousand
    DATA/audit/refused-00000003.jsonl      what was refused: any client can cause that
    DATA/audit/tokens-00000001.jsonl       tokens made and revoked, backups made and restored by `mq`, a process beside
                                            the server

A ring has so many files of so many bytes at most; the oldest goes. There are several, so that what fills one takes
nothing out of another. Each has one writer at a time: the server, which holds the lock of the data directory, or for
`tokens` the process that holds the lock of the directory.

Invariants
    T1  what `Ring.append` returned from is durable, and whole lines
    T2  times never fall along a ring, whatever the clock does
    T3  a crash leaves at most one torn append, at the end of a ring's newest file: the next append cuts it, and readers
        pass over lines that are no JSON
"""

from __future__ import annotations

import heapq
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson

from store.files import File, Files
from store.limits import KiB, MiB

DIRECTORY = "audit"
TEXT_CHARS_MAX = 256
"""Of any text in a line, such as a name in a path that nothing has."""

DETAILS_BYTES_MAX = 1 * KiB
LINE_BYTES_MAX = 32 * KiB
"""What no line reaches, given the two above."""

SCAN_BYTES_MAX = 4 * MiB
"""Read for one page, which may be short therefore."""

_BLOCK_BYTES = 64 * KiB
_NAME = re.compile(r"(?P<ring>[a-z]+)-(?P<number>[0-9]{8})\.jsonl")
_CURSOR = re.compile(r"[0-9]{1,8}\.[0-9]{1,12}(?:-[0-9]{1,8}\.[0-9]{1,12})*")
_CREDENTIAL = re.compile(rb"mq_[A-Za-z0-9]{8,}_[A-Za-z0-9_-]{20,}|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")

Outcome = Literal["done", "refused", "failed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One action, as it is recorded. Texts and details of any length: they are cut when written."""

    action: str
    """What was to be done, such as `topic.create`."""

    principal: str
    outcome: Outcome
    """`unknown`: the caller had disconnected, or the server stopped, before there was an answer."""

    object: dict[str, str] = field(default_factory=dict)
    """What it was to be done to, by kind: `{"topic": "orders"}`."""

    details: dict[str, Any] = field(default_factory=dict)
    token_id: str | None = None
    address: str | None = None
    status: int | None = None
    """Of HTTP."""

    error_code: int | None = None
    error: str | None = None
    request_id: str | None = None


_FIELDS = tuple(item.name for item in fields(Act))


class RingSpec(NamedTuple):
    """One ring, and what it may take of the disk."""

    name: str
    files_max: int
    file_bytes: int


ACTIONS = RingSpec("actions", 8, 8 * MiB)
SCHEDULES = RingSpec("schedules", 4, 4 * MiB)
REFUSED = RingSpec("refused", 4, 2 * MiB)
TOKENS = RingSpec("tokens", 4, 1 * MiB)
RINGS = (ACTIONS, SCHEDULES, REFUSED, TOKENS)


class Position(NamedTuple):
    """Where a line begins: what is before it is older. (0, 0): nothing is."""

    number: int
    offset: int


def encoded(act: Act, time_ms: int) -> bytes:
    """The line of an act. No credential of ours or a JWT is in it, wherever a client wrote one."""
    details: dict[str, object] = {}
    room = DETAILS_BYTES_MAX
    for name, value in act.details.items():
        shown = {_text(name): _text(value) if isinstance(value, str) else value}
        try:
            room -= len(orjson.dumps([shown])) - 2  # as deep as it is in the line
        except TypeError:  # nested more deeply than can be written: a route that takes fields it does not know
            room = -1
        if room < 0:
            details["cut"] = True
            break
        details |= shown
    row: dict[str, object] = {"time_ms": time_ms}
    for name in _FIELDS:  # `asdict` copies what is in them, too: most of the work of a line
        value = getattr(act, name)
        row[name] = _text(value) if isinstance(value, str) else value
    row["object"] = {_text(kind): _text(name) for kind, name in act.object.items()}
    row["details"] = details
    return _CREDENTIAL.sub(b"***", orjson.dumps(row)) + b"\n"


def _text(text: str) -> str:
    return text[:TEXT_CHARS_MAX].encode("utf-8", "backslashreplace").decode()[:TEXT_CHARS_MAX]


class Ring:
    """The writing end of one ring. Its methods block; one call at a time. Raises OSError: an append that has failed may
    be tried again, and is written over then."""

    def __init__(self, directory: Path, spec: RingSpec, files: Files) -> None:
        self._directory = directory
        self._spec = spec
        self._files = files
        self._file: File | None = None
        self._number = 0
        self._end = 0
        self._last_ms = 0

    @property
    def path(self) -> Path:
        """The newest file."""
        return self._directory / _name(self._spec, self._number)

    def append(self, acts: Sequence[tuple[int, Act]]) -> None:
        """Write acts with their times (epoch ms); durable on return."""
        if self._file is None:
            self._open()
        lines = []
        last_ms = self._last_ms
        for time_ms, act in acts:
            last_ms = max(last_ms, time_ms)
            lines.append(encoded(act, last_ms))
        content = b"".join(lines)
        if self._end and self._end + len(content) > self._spec.file_bytes:
            self._roll()
        assert self._file is not None
        self._file.pwritev([content], self._end)
        self._file.datasync()
        self._end += len(content)
        self._last_ms = last_ms

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> None:
        self._files.make_dirs(self._directory)
        numbers = _numbers(self._files.list(self._directory), self._spec)
        self._number = numbers[-1] if numbers else 1
        file = self._files.open(self.path, create=True, is_private=True)
        try:
            self._files.sync_dir(self._directory)
            size = file.size()
            self._end, last_line = _last_line(file, size)
            if self._end < size:
                file.truncate(self._end)  # T3
            self._last_ms = _time_of(_row(last_line))
        except OSError:
            file.close()
            raise
        self._file = file

    def _roll(self) -> None:
        path = self._directory / _name(self._spec, self._number + 1)
        file = self._files.open(path, create=True, is_private=True)
        try:
            file.truncate(0)  # what a try before this one has left
            self._files.sync_dir(self._directory)
        except OSError:
            file.close()
            raise
        self.close()
        self._file, self._number, self._end = file, self._number + 1, 0
        for number in _numbers(self._files.list(self._directory), self._spec)[: -self._spec.files_max]:
            self._files.remove(self._directory / _name(self._spec, number))


class Printed:
    """In place of a ring, of a server without a directory: lines on standard output, where its first one is the URL.
    Whoever reads them keeps them."""

    def append(self, acts: Sequence[tuple[int, Act]]) -> None:
        """See `Ring.append`: passed on to the system on return."""
        sys.stdout.buffer.write(b"".join(encoded(act, time_ms) for time_ms, act in acts))
        sys.stdout.buffer.flush()

    def close(self) -> None:
        """Nothing is open."""


def _name(spec: RingSpec, number: int) -> str:
    return f"{spec.name}-{number:08}.jsonl"


def _numbers(names: Sequence[str], spec: RingSpec) -> list[int]:
    matches = (_NAME.fullmatch(name) for name in names)
    return sorted(int(match["number"]) for match in matches if match is not None and match["ring"] == spec.name)


def _last_line(file: File, size: int) -> tuple[int, bytes]:
    """Where the last whole line of a file ends, and that line."""
    end = size
    tail = b""
    while end > 0:
        start = max(0, end - _BLOCK_BYTES)
        tail = file.pread(end - start, start) + tail
        end = start
        if (last := tail.rfind(b"\n")) >= 0 and (start == 0 or tail.rfind(b"\n", 0, last) >= 0):
            return start + last + 1, tail[tail.rfind(b"\n", 0, last) + 1 : last]
    return 0, b""


def _row(line: bytes) -> dict[str, object] | None:
    """The object of a line; None for what a crash has left."""
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("time_ms"), int) else None


def _time_of(row: dict[str, object] | None) -> int:
    time_ms = 0 if row is None else row["time_ms"]
    assert isinstance(time_ms, int)
    return time_ms


# ------------------------------------------------------------------------------------------------------- reading


class _Found(NamedTuple):
    time_ms: int
    ring: str
    position: Position
    row: dict[str, object]


class _Back:
    """The lines of one ring, back from a position or its end."""

    def __init__(self, directory: Path, spec: RingSpec, files: Files, before: Position | None) -> None:
        self._directory = directory
        self._spec = spec
        self._files = files
        self._before = before
        self.position = before or Position(0, 0)
        """Before the last line that was taken."""

        self.read_bytes = 0

    def __iter__(self) -> Iterator[_Found]:
        before = self._before
        for number in reversed(_numbers(self._files.list(self._directory), self._spec)):
            if before is not None and number > before.number:
                continue
            try:
                file = self._files.open(self._directory / _name(self._spec, number))
            except FileNotFoundError:  # the ring has moved on
                return
            try:
                end = file.size()
                if before is not None and number == before.number:
                    end = min(before.offset, end)  # a cursor says what its sender likes
                if self.position == Position(0, 0):
                    self.position = Position(number, end)
                for start, row in self._lines(file, end):
                    yield _Found(_time_of(row), self._spec.name, Position(number, start), row)
            finally:
                file.close()

    def _lines(self, file: File, end: int) -> Iterator[tuple[int, dict[str, object]]]:
        tail = b""  # of a line that begins before `end`
        while end > 0:
            start = max(0, end - _BLOCK_BYTES)
            block = file.pread(end - start, start) + tail
            self.read_bytes += end - start
            end = start
            first = block.find(b"\n") + 1 if start else 0
            if start and not first:
                tail = block if len(block) < _BLOCK_BYTES + LINE_BYTES_MAX else b""
                continue
            last = block.rfind(b"\n", first)
            while last >= 0:
                begin = block.rfind(b"\n", first, last) + 1 or first
                if (row := _row(block[begin:last])) is not None:
                    yield start + begin, row
                last = begin - 1 if begin > first else -1
            tail = block[:first]


class Page(NamedTuple):
    """Rows, the newest first. `next_cursor` None: there are no older ones."""

    rows: list[dict[str, object]]
    next_cursor: str | None


def read_page(
    directory: Path,
    files: Files,
    wanted: Callable[[dict[str, object]], bool],
    *,
    cursor: str | None,
    limit: int,
    from_ms: int = 0,
) -> Page:
    """Up to `limit` rows that are wanted, of `from_ms` or later, older than those of the page that named the cursor.

    Blocks. A page may be short, even empty, and have a next one. Raises ValueError for a cursor that is none, OSError.
    """
    before = dict.fromkeys((ring.name for ring in RINGS), None) if cursor is None else _positions(cursor)
    backs = {ring.name: _Back(directory, ring, files, before[ring.name]) for ring in RINGS}
    rows: list[dict[str, object]] = []
    for found in heapq.merge(*backs.values(), key=lambda found: -found.time_ms):
        if found.time_ms < from_ms:
            break  # T2
        backs[found.ring].position = found.position
        if wanted(found.row):
            rows.append(found.row)
        if len(rows) == limit or sum(back.read_bytes for back in backs.values()) > SCAN_BYTES_MAX:
            return Page(rows, "-".join(f"{at.number}.{at.offset}" for at in (back.position for back in backs.values())))
    return Page(rows, None)


def dump(path: Path) -> Iterator[dict[str, object]]:
    """The lines of one file, damage too. Raises ValueError for a file that is none of a trail's, OSError."""
    if path.parent.name != DIRECTORY or not _NAME.fullmatch(path.name):
        raise ValueError(f"{path} is no file of a trail")
    return (_row(line) or {"damage": line.decode("utf-8", "backslashreplace")} for line in path.open("rb"))


def _positions(cursor: str) -> dict[str, Position | None]:
    parts = cursor.split("-")
    if not _CURSOR.fullmatch(cursor) or len(parts) != len(RINGS):
        raise ValueError("cursor: not one that a page has named")
    pairs = [part.split(".") for part in parts]
    return {ring.name: Position(int(number), int(offset)) for ring, (number, offset) in zip(RINGS, pairs, strict=True)}
