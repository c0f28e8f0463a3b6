"""RocksDB as the index uses it, in a few lines on a simulated disk: so that power cuts strike the real code above it.

The real database does its own I/O, which `SimDisk` does not see; tests/crash kills and cuts that one. Here the code of
store/index/rocksdb.py and store/index/light.py runs on `SimRdict`, which promises what it relies on, and no more:

    D1  a batch is applied whole or not at all, batches in the order they were written
    D2  a batch survives a kill; a power cut takes any number of the last ones that no `flush_wal(sync=True)` covers
    D3  what is read is what was written, in the order of keys

Its log is one file, begun anew at an opening that finds more than whole batches. Damaged files are no part of it.
"""

from __future__ import annotations

import pickle
import struct
from bisect import bisect_left, insort
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from crc32c import crc32c

from store.files import Files
from store.index import opening, rocksdb
from store.index.rocksdb import RocksDbConsumeQueues

_FRAME = struct.Struct(">II")
_DEFAULT = "default"


class SimBatch:
    """Stands for rocksdict.WriteBatch."""

    def __init__(self, raw_mode: bool) -> None:
        assert raw_mode
        self.changes: list[tuple[str, str, bytes, bytes]] = []

    def __setitem__(self, key: bytes, value: bytes) -> None:
        self.put(key, value)

    def put(self, key: bytes, value: bytes, family: str = _DEFAULT) -> None:
        self.changes.append(("put", family, key, value))

    def delete(self, key: bytes, family: str = _DEFAULT) -> None:
        self.changes.append(("delete", family, key, b""))

    def delete_range(self, first: bytes, end: bytes, family: str) -> None:
        self.changes.append(("delete_range", family, first, end))


class SimFamily:
    """One column family: its rows, and its keys in order."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.order: list[bytes] = []

    def apply(self, change: str, key: bytes, value: bytes) -> None:
        if change == "put":
            if key not in self.rows:
                insort(self.order, key)
            self.rows[key] = value
        elif change == "delete":
            if self.rows.pop(key, None) is not None:
                del self.order[bisect_left(self.order, key)]
        else:
            first, end = bisect_left(self.order, key), bisect_left(self.order, value)
            for gone in self.order[first:end]:
                del self.rows[gone]
            del self.order[first:end]

    def get(self, key: bytes | list[bytes]) -> Any:
        return list(map(self.rows.get, key)) if isinstance(key, list) else self.rows.get(key)

    def keys(self, *, from_key: bytes, read_opt: bytes) -> Iterator[bytes]:
        return iter(self.order[bisect_left(self.order, from_key) : bisect_left(self.order, read_opt)])

    def items(self, *, from_key: bytes, read_opt: bytes) -> Iterator[tuple[bytes, bytes]]:
        return ((key, self.rows[key]) for key in self.keys(from_key=from_key, read_opt=read_opt))

    def values(self, *, from_key: bytes, read_opt: bytes) -> Iterator[bytes]:
        return (self.rows[key] for key in self.keys(from_key=from_key, read_opt=read_opt))

    def close(self) -> None:
        pass


class SimRdict:
    """Stands for rocksdict.Rdict. `files` are the disks of what was opened, by path."""

    files: ClassVar[dict[Path, Files]] = {}

    def __init__(self, path: str, options: object, column_families: dict[str, object]) -> None:
        self._path = Path(path)
        self._files = SimRdict.files[self._path]
        self._files.make_dirs(self._path)
        self._families, number, end, is_clean = _load(self._files, self._path)
        if "CURRENT" not in self._files.list(self._path):  # a new one, whatever is left of another
            self._families, is_clean = {}, False
        assert column_families.keys() >= self._families.keys() - {_DEFAULT}, (
            "the database has families that are not opened"
        )
        for name in (_DEFAULT, *column_families):
            self._families.setdefault(name, SimFamily())
        if is_clean:
            self._log, self._end = self._files.open(self._path / f"log.{number}"), end
        else:
            self._begin_log()
        if "CURRENT" not in self._files.list(self._path):
            self._files.open(self._path / "CURRENT", create=True).close()
            self._files.sync_dir(self._path)
        self._default = self._families[_DEFAULT]
        self.get, self.keys, self.items, self.values = (
            self._default.get, self._default.keys, self._default.items, self._default.values,
        )  # fmt: skip

    @staticmethod
    def list_cf(path: str) -> list[str]:
        files = SimRdict.files[Path(path)]
        if "CURRENT" not in files.list(Path(path)):
            raise OSError("no database")
        return list(_load(files, Path(path))[0])

    def _begin_log(self) -> None:
        """A new log with all there is; then the ones before it go."""
        old = [name for name in self._files.list(self._path) if name.startswith("log.")]
        number = max((int(name[4:]) for name in old), default=0) + 1
        self._log, self._end = self._files.open(self._path / f"log.{number}", create=True), 0
        changes = [("put", name, key, value) for name, one in self._families.items() for key, value in one.rows.items()]
        self._add([("make", name, b"", b"") for name in self._families] + changes)
        self._log.datasync()
        self._files.sync_dir(self._path)
        for name in old:
            self._files.remove(self._path / name)
        self._files.sync_dir(self._path)

    def _add(self, changes: list[tuple[str, str, bytes, bytes]]) -> None:
        content = pickle.dumps(changes)
        self._log.pwritev([_FRAME.pack(len(content), crc32c(content, self._end)), content], self._end)
        self._end += _FRAME.size + len(content)

    def get_column_family(self, name: str) -> SimFamily:
        return self._families[name]

    def get_column_family_handle(self, name: str) -> str:
        assert name in self._families
        return name

    def create_column_family(self, name: str, options: object) -> SimFamily:
        self._add([("make", name, b"", b"")])
        self._log.datasync()
        self._families[name] = SimFamily()
        return self._families[name]

    def write(self, batch: SimBatch, options: object) -> None:
        self._add(batch.changes)
        _apply(self._families, batch.changes)

    def flush_wal(self, *, sync: bool) -> None:
        assert sync
        self._log.datasync()

    def close(self) -> None:
        self._log.close()


def _apply(families: dict[str, SimFamily], changes: list[tuple[str, str, bytes, bytes]]) -> None:
    for change, family, key, value in changes:
        if change == "make":
            families.setdefault(family, SimFamily())
        else:
            families[family].apply(change, key, value)


def _load(files: Files, path: Path) -> tuple[dict[str, SimFamily], int, int, bool]:
    """The families in the newest log that begins with a whole batch; its number, where its batches end, and whether
    there is nothing else."""
    numbers = sorted((int(name[4:]) for name in files.list(path) if name.startswith("log.")), reverse=True)
    for number in numbers:
        file = files.open(path / f"log.{number}")
        content = file.pread(file.size(), 0)
        file.close()
        families: dict[str, SimFamily] = {}
        at = 0
        while at + _FRAME.size <= len(content):
            size, crc = _FRAME.unpack_from(content, at)
            frame = content[at + _FRAME.size : at + _FRAME.size + size]
            if not size or len(frame) < size or crc32c(frame, at) != crc:
                break
            _apply(families, pickle.loads(frame))  # noqa: S301
            at += _FRAME.size + size
        if at:
            return families, number, at, at == len(content) and len(numbers) == 1
    return {}, max(numbers, default=0), 0, False


def rows_in(files: Files, path: Path) -> dict[str, dict[bytes, bytes]]:
    """All rows of a database that is closed, by family."""
    return {name: dict(family.rows) for name, family in _load(files, path)[0].items()}


@contextmanager
def simulated_database() -> Iterator[None]:
    """Within, every index of the kind "rocksdb" has its database on the `Files` it was opened with last, and is removed
    there."""

    def remove_tree(path: Path) -> None:
        files = SimRdict.files[path]
        for name in files.list(path):
            files.remove(path / name)

    original = RocksDbConsumeQueues._open_database

    def open_database(self: RocksDbConsumeQueues, rebuild: bool) -> Any:
        SimRdict.files[self._path] = self._files
        return original(self, rebuild)

    with (
        patch.object(RocksDbConsumeQueues, "_open_database", open_database),
        patch.object(opening, "shutil", SimpleNamespace(rmtree=remove_tree)),
        patch.object(rocksdb, "Rdict", SimRdict),
        patch.object(rocksdb, "WriteBatch", SimBatch),
        patch.object(rocksdb, "_up_to", lambda end: end),
    ):
        yield
