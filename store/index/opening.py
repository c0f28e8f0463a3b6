"""Which kind of index a data directory has, and opening it: the one place that knows all kinds.

    index.0 index.1, consumequeue/    kind "file"
    consumequeue.rocksdb/             kind "rocksdb"
    index-rebuild.0 or .1             a rebuild (store/offline/index_rebuild.py) of the kind it names is unfinished

A directory has one kind at a time. The other kind is never begun beside it in silence: what only the index knows, the
max offsets of queues whose records have all expired, would be lost.

The content of `index-rebuild` (framing: store/snapshot.py; next offset = a log position known to be durable):

    kind u8 (0 file, 1 rocksdb), then for each queue an old index knew: topic id u32 | queue id u32 | max offset i64
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from store.config import StoreConfig
from store.errors import IndexDamaged, IndexRefused
from store.files import Files
from store.index.base import ConsumeQueues
from store.index.counted import decode_bounds
from store.index.file import FileConsumeQueues
from store.snapshot import Snapshot, SnapshotFiles
from store.types import QueueKey

IndexKind = Literal["file", "rocksdb"]
KINDS: tuple[IndexKind, ...] = ("file", "rocksdb")

FILE_SNAPSHOT = "index"
FILE_DIRECTORY = "consumequeue"
ROCKSDB_DIRECTORY = "consumequeue.rocksdb"
_ROCKSDB_ROOT_FILE = "CURRENT"  # without it there is no database
REBUILD_SNAPSHOT = "index-rebuild"
_MAX_OFFSET = struct.Struct(">IIq")


class Rebuild(NamedTuple):
    """A rebuild that is not finished: what it makes, and what the index before it knew."""

    target: IndexKind
    durable_position: int
    max_offsets: Mapping[QueueKey, int]


def open_consume_queues(
    config: StoreConfig, files: Files, *, first_position: int, rebuild: bool = False
) -> ConsumeQueues:
    """The consume queues of a store, of the configured kind. `first_position` is where its log begins.

    Raises IndexRefused when the directory is indexed by the other kind, when a rebuild was interrupted, or when the
    kind is not installed; IndexDamaged when the index must be built again (`rebuild`, see ConsumeQueues).
    """
    root, kind = config.root, config.index
    unfinished = load_rebuild(root, files)
    if unfinished is not None and unfinished.target == kind:
        raise IndexRefused(f"{root}: a rebuild of the index was interrupted; finish it: {_command(root, kind)}")
    other = other_kind(kind)
    if has_index(other, root, files) and not has_index(kind, root, files):
        raise IndexRefused(
            f'{root} is indexed by "{other}", but index = "{kind}" is configured; run {_command(root, kind)}, '
            f'or set index = "{other}"'
        )
    queues = open_kind(kind, config, files, first_position=first_position, rebuild=rebuild)
    if not rebuild and queues.checkpoint < first_position:
        queues.close()
        raise IndexDamaged(f"the index ends at position {queues.checkpoint}, but the log begins at {first_position}")
    return queues


def open_kind(
    kind: IndexKind, config: StoreConfig, files: Files, *, first_position: int, rebuild: bool = False
) -> ConsumeQueues:
    """The index of this kind as it is, without asking whether it is the right one. Raises as `open_consume_queues`."""
    if kind == "file":
        return FileConsumeQueues(
            config.root,
            files,
            file_units=config.consume_queue_file_units,
            first_position=first_position,
            rebuild=rebuild,
        )
    try:
        from store.index.rocksdb import RocksDbConsumeQueues
    except ModuleNotFoundError as error:
        raise _not_installed() from error
    return RocksDbConsumeQueues(config.root / ROCKSDB_DIRECTORY, files, first_position=first_position, rebuild=rebuild)


def read_max_offsets(kind: IndexKind, root: Path, files: Files) -> tuple[int, dict[QueueKey, int]] | None:
    """The checkpoint of an index, and the max offset of each queue at that point; None when nothing is readable.

    Raises IndexRefused when the kind is not installed.
    """
    if not has_index(kind, root, files):
        return None
    if kind == "file":
        snapshot = SnapshotFiles(root, FILE_SNAPSHOT, files).load()
        if snapshot is None:
            return None
        return snapshot.next_offset, {key: bounds.max_offset for key, bounds in decode_bounds(snapshot.content)}
    try:
        from store.index.rocksdb import RocksDbConsumeQueues
    except ModuleNotFoundError as error:
        raise _not_installed() from error
    try:
        queues = RocksDbConsumeQueues(root / ROCKSDB_DIRECTORY, files, first_position=0)
    except IndexDamaged:
        return None
    try:
        return queues.checkpoint, queues.max_offsets()
    finally:
        queues.close()


def other_kind(kind: IndexKind) -> IndexKind:
    """The kind that is not this one."""
    return "rocksdb" if kind == "file" else "file"


def has_index(kind: IndexKind, root: Path, files: Files) -> bool:
    """Whether the directory holds an index of this kind."""
    if kind == "file":
        return any(f"{FILE_SNAPSHOT}.{number}" in files.list(root) for number in (0, 1))
    return _ROCKSDB_ROOT_FILE in files.list(root / ROCKSDB_DIRECTORY)


def remove_index(kind: IndexKind, root: Path, files: Files) -> None:
    """Remove an index: first, durably, what makes it one, so that half an index is never taken for a whole one."""
    if kind == "rocksdb":
        directory = root / ROCKSDB_DIRECTORY
        if not files.list(directory):
            return
        if has_index(kind, root, files):
            files.remove(directory / _ROCKSDB_ROOT_FILE)
            files.sync_dir(directory)
        shutil.rmtree(directory)  # files of the database's own making, beyond `Files`
        return
    _remove_pair(root, FILE_SNAPSHOT, files)
    directory = root / FILE_DIRECTORY
    for topic in files.list(directory):
        for queue in files.list(directory / topic):
            for name in files.list(directory / topic / queue):
                files.remove(directory / topic / queue / name)
            files.remove_dir(directory / topic / queue)
        files.remove_dir(directory / topic)
    if FILE_DIRECTORY in files.list(root):
        files.remove_dir(directory)


def load_rebuild(root: Path, files: Files) -> Rebuild | None:
    """The rebuild under way in this directory, None when there is none."""
    snapshot = SnapshotFiles(root, REBUILD_SNAPSHOT, files).load()
    return None if snapshot is None else decode_rebuild(snapshot.content, snapshot.next_offset)


def decode_rebuild(content: bytes, durable_position: int = 0) -> Rebuild:
    """What the snapshot of a rebuild says."""
    rows = _MAX_OFFSET.iter_unpack(memoryview(content)[1:])
    max_offsets = {QueueKey(topic_id, queue_id): max_offset for topic_id, queue_id, max_offset in rows}
    return Rebuild(KINDS[content[0]], durable_position, max_offsets)


def save_rebuild(root: Path, files: Files, rebuild: Rebuild) -> None:
    """Say that a rebuild begins; durable on return."""
    rows = [_MAX_OFFSET.pack(*key, max_offset) for key, max_offset in rebuild.max_offsets.items()]
    content = bytes([KINDS.index(rebuild.target)]) + b"".join(rows)
    snapshots = SnapshotFiles(root, REBUILD_SNAPSHOT, files)
    snapshots.load()
    snapshots.save(Snapshot(rebuild.durable_position, content))


def clear_rebuild(root: Path, files: Files) -> None:
    """Say that the rebuild is finished; durable on return."""
    _remove_pair(root, REBUILD_SNAPSHOT, files)


def _remove_pair(root: Path, name: str, files: Files) -> None:
    present = files.list(root)
    for number in (0, 1):
        if f"{name}.{number}" in present:
            files.remove(root / f"{name}.{number}")
    files.sync_dir(root)


def _not_installed() -> IndexRefused:
    return IndexRefused('index "rocksdb" needs the package rocksdict: pip install "mq-gateway[rocksdb]"')


def _command(root: Path, kind: IndexKind) -> str:
    return f"`mq index rebuild --data {root} --to {kind}`"
