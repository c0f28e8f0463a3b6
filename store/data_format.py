"""The version of a data directory as a whole: file `format`, one line of text, `mq data format 2`.

Read before anything else is touched: a program never opens a directory that a newer one has written. The number goes up
with each change that a program of before would misread; docs/formats.md says what each version brought. A directory of
an older version gets `BASE_VERSION` when it is opened, before anything else is written to it: from then on older
programs refuse it. It gets a higher one before it holds the first thing that needs it (`raise_format`): who never uses
light queues can go back.
"""

from __future__ import annotations

import logging
from pathlib import Path

from store.errors import Corrupt, FormatTooNew
from store.files import Files

log = logging.getLogger(__name__)

BASE_VERSION = 2
"""What a directory gets when it is made or opened."""

VERSION = 4
"""The highest one that this program knows. Since 3 entries of the log may name light queues. 4 changes nothing in a
directory: it is what nodes tell each other (SHARD_IDS_FORMAT)."""

SHARD_IDS_FORMAT = 4
"""Nodes that know it keep the ids of delayed sends in shards on Kafka (gateway/cluster/shard_ids.py)."""

_PREFIX = b"mq data format "
_BYTES_MAX = 64


def check_format(root: Path, files: Files) -> None:
    """Accept a directory of this version; stamp one that is new or older, durably. Raises FormatTooNew, Corrupt."""
    path = root / "format"
    if path.name not in files.list(root):
        # Made whole before its name is durable; an empty one is the leftover of a crash in between.
        _stamp(path, files, BASE_VERSION)
        return
    version = _version_in(path, files)
    if version is None:
        _stamp(path, files, BASE_VERSION)
        return
    if version > VERSION:
        raise FormatTooNew(f"{path} says format {version}; this program knows {VERSION}: use a newer mq")
    if version < BASE_VERSION:
        _replace(path, files, BASE_VERSION)
        log.info("upgraded data_dir=%s from_format=%d to_format=%d", root, version, BASE_VERSION)


def raise_format(root: Path, files: Files, version: int) -> None:
    """Have a directory that was accepted say at least this version; durable on return. Raises OSError: a crash, or an
    error, may leave it without a stamp, as a new one, so nothing that needs the version may be written before."""
    path = root / "format"
    found = _version_in(path, files) if path.name in files.list(root) else None
    if found is None:
        _stamp(path, files, version)
    elif found < version:
        _replace(path, files, version)
        log.info("raised data_dir=%s from_format=%d to_format=%d", root, found, version)


def _version_in(path: Path, files: Files) -> int | None:
    file = files.open(path)
    try:
        content = file.pread(_BYTES_MAX, 0)
    finally:
        file.close()
    return version_of(content, str(path))


def _replace(path: Path, files: Files, version: int) -> None:
    # Not written over: a power cut may spoil a sector that is being written. Without a file it is stamped as new.
    files.remove(path)
    files.sync_dir(path.parent)
    _stamp(path, files, version)


def version_of(content: bytes, path: str) -> int | None:
    """The version that a stamp says; None for an empty one. Raises Corrupt when it is no stamp."""
    if not content.strip(b"\0"):
        return None
    version = content.removeprefix(_PREFIX).strip()
    if not content.startswith(_PREFIX) or not version.isdigit():
        raise Corrupt(path, 0, f"{content[:40]!r} is not a format stamp")
    return int(version)


def _stamp(path: Path, files: Files, version: int) -> None:
    file = files.open(path, create=True)
    try:
        file.pwritev([_PREFIX + b"%d\n" % version], 0)
        file.datasync()
    finally:
        file.close()
    files.sync_dir(path.parent)
