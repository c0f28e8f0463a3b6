"""The version of a data directory as a whole: file `format`, one line of text, `mq data format 2`.

Read before anything else is touched: a program never opens a directory that a newer one has written. The number goes up
with each change that a program of before would misread; docs/formats.md says what each version brought. A directory of
an older version gets this one when it is opened, before anything else is written to it: from then on older programs
refuse it.
"""

from __future__ import annotations

import logging
from pathlib import Path

from store.errors import Corrupt, FormatTooNew
from store.files import Files

log = logging.getLogger(__name__)

VERSION = 2
_PREFIX = b"mq data format "
_BYTES_MAX = 64


def check_format(root: Path, files: Files) -> None:
    """Accept a directory of this version; stamp one that is new or older, durably. Raises FormatTooNew, Corrupt."""
    path = root / "format"
    if path.name not in files.list(root):
        # Made whole before its name is durable; an empty one is the leftover of a crash in between.
        _stamp(path, files)
        return
    file = files.open(path)
    try:
        content = file.pread(_BYTES_MAX, 0)
    finally:
        file.close()
    version = version_of(content, str(path))
    if version is None:
        _stamp(path, files)
        return
    if version > VERSION:
        raise FormatTooNew(f"{path} says format {version}; this program knows {VERSION}: use a newer mq")
    if version < VERSION:
        # Not written over: a power cut may spoil a sector that is being written. Without a file it is stamped as new.
        files.remove(path)
        files.sync_dir(root)
        _stamp(path, files)
        log.info("upgraded data_dir=%s from_format=%d to_format=%d", root, version, VERSION)


def version_of(content: bytes, path: str) -> int | None:
    """The version that a stamp says; None for an empty one. Raises Corrupt when it is no stamp."""
    if not content.strip(b"\0"):
        return None
    version = content.removeprefix(_PREFIX).strip()
    if not content.startswith(_PREFIX) or not version.isdigit():
        raise Corrupt(path, 0, f"{content[:40]!r} is not a format stamp")
    return int(version)


def _stamp(path: Path, files: Files) -> None:
    file = files.open(path, create=True)
    try:
        file.pwritev([_PREFIX + b"%d\n" % VERSION], 0)
        file.datasync()
    finally:
        file.close()
    files.sync_dir(path.parent)
