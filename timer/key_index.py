"""The rows of schedule keys on disk: a table of SQLite.

    keys    (topic id, key) -> the copy that was met last: position of its `__timer` entry, index in it, and the second
            of its slot
    state   one row: the queue offset up to which the rows are complete

The file holds no fact of its own: rows are believed only as far as the log bears them out (timer/schedule_keys.py), and
a file that is missing, damaged or behind its checkpoint is made again from the log. It is not there until the first
schedule with a key is. SQLite and not a format of ours: a table with two indexes on disk is nothing that this project
is for.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from store.types import Source
from timer.ports import KeyRow, TopicKey

VERSION = 1
_MAGIC = b"SQLite format 3\0"
_NOTHING = -1
_ERRNOS = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_CANTOPEN: errno.EMFILE}
"""What it says when it cannot open a file: out of handles, mostly, as which it is tried again."""

_SCHEMA = f"""
    CREATE TABLE keys (
        topic_id INTEGER, key BLOB, position INTEGER, record_index INTEGER, slot_s INTEGER, PRIMARY KEY (topic_id, key)
    ) WITHOUT ROWID;
    CREATE INDEX by_slot ON keys (slot_s);
    CREATE TABLE state (queue_offset INTEGER);
    INSERT INTO state VALUES (0);
    PRAGMA user_version = {VERSION};
"""


class SqliteKeyIndex:
    """`timer.ports.KeyIndex` in one file. Calls may come from any thread, one goes after the other."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file is there and cannot be opened."""
        self._path = path
        self._one_at_a_time = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._is_damaged = False
        self.queue_offset = _NOTHING
        if path.exists():
            try:
                self._open()
            except (OSError, ValueError) as error:
                if isinstance(error, OSError) and error.errno == errno.EMFILE:
                    raise  # nothing is wrong with what is in it
                self._is_damaged = True

    @property
    def is_used(self) -> bool:
        """See `KeyIndex.is_used`."""
        return self._connection is not None

    def find(self, keys: Iterable[TopicKey]) -> dict[TopicKey, Source]:
        """See `KeyIndex.find`."""
        found = {}
        with self._using() as connection:
            for key in keys:
                row = connection.execute(
                    "SELECT position, record_index FROM keys WHERE topic_id = ? AND key = ?", key
                ).fetchone()
                if row is not None:
                    found[key] = Source(*row)
        return found

    def commit(self, rows: Mapping[TopicKey, KeyRow], queue_offset: int, *, before_s: int | None) -> None:
        """See `KeyIndex.commit`."""
        if self._connection is None:
            self._open()
        with self._using() as connection, connection:
            if before_s is not None:
                connection.execute("DELETE FROM keys WHERE slot_s < ?", (before_s,))
            connection.executemany(
                "INSERT OR REPLACE INTO keys VALUES (?, ?, ?, ?, ?)",
                ((*key, *row.source, row.slot_s) for key, row in rows.items()),
            )
            connection.execute("UPDATE state SET queue_offset = ?", (queue_offset,))
        self.queue_offset = queue_offset

    def all_rows(self) -> list[tuple[TopicKey, KeyRow]]:
        """See `KeyIndex.all_rows`."""
        with self._using() as connection:
            found = connection.execute("SELECT topic_id, key, position, record_index, slot_s FROM keys").fetchall()
        return [
            (TopicKey(topic_id, key), KeyRow(Source(position, index), slot_s))
            for topic_id, key, position, index, slot_s in found
        ]

    def reset(self) -> None:
        """See `KeyIndex.reset`."""
        self._is_damaged = False
        self.close()
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
        self.queue_offset = _NOTHING

    def close(self) -> None:
        """See `KeyIndex.close`. A file that was found damaged goes, so that the next start makes it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._is_damaged:
            self.reset()

    def _open(self) -> None:
        """Raises OSError; ValueError when the file is another version's."""
        with self._as_os_error():
            connection = self._connection = sqlite3.connect(self._path, check_same_thread=False)
        try:
            with self._using():
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = FULL")  # each commit is on disk when it returns
                (version,) = connection.execute("PRAGMA user_version").fetchone()
                if version == 0:
                    connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                elif version != VERSION:
                    raise ValueError(f"{self._path} is of version {version}: not ours to read")
                (self.queue_offset,) = connection.execute("SELECT queue_offset FROM state").fetchone()
        except BaseException:
            connection.close()
            self._connection = None
            raise

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread; what SQLite raises becomes OSError."""
        with self._one_at_a_time, self._as_os_error():
            assert self._connection is not None
            yield self._connection

    @contextmanager
    def _as_os_error(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._is_damaged |= not isinstance(error, sqlite3.OperationalError)
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without what it says more exactly
            raise OSError(_ERRNOS.get(code, errno.EIO), f"schedule keys: {error}", str(self._path)) from error


def is_key_file(path: Path) -> bool:
    """Whether a file is a database of SQLite."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def rows_of_file(path: Path) -> Iterator[dict[str, object]]:
    """What a file holds that no timer has open, its write-ahead log included: first how far it goes, then a line a row.
    Damage is a line too. Nothing is written."""
    try:
        with closing(_read_only(path)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            (queue_offset,) = connection.execute("SELECT queue_offset FROM state").fetchone()
            yield {"version": version, "queue_offset": queue_offset}
            for topic_id, key, *copy, slot_s in connection.execute("SELECT * FROM keys"):
                position, record_index = copy
                yield {
                    "topic_id": topic_id, "schedule_key": key.decode("utf-8", "replace"), "entry_position": position,
                    "record_index": record_index, "slot_s": slot_s,
                }  # fmt: skip
    except sqlite3.Error as error:
        yield {"damage": str(error)}


def check_file(path: Path) -> str | None:
    """What is wrong with a file that no timer has open; None when nothing is. Reads all of it. Raises OSError."""
    if not is_key_file(path):
        return "it is no database"
    try:
        with closing(_read_only(path)) as connection:
            (said,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
            return None if said == "ok" else str(said)
    except sqlite3.Error as error:
        return str(error)


def _read_only(path: Path) -> sqlite3.Connection:
    # A database with a write-ahead log cannot be opened where nothing may be written, but for one that does not change.
    has_wal = path.with_name(f"{path.name}-wal").exists()
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro" + ("" if has_wal else "&immutable=1"), uri=True)
