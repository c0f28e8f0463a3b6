"""The version of a data directory as a whole: file `format`, one line of text, `mq data format 1`.

Read before anything else is touched: a program never opens a directory that a newer one has written.
"""

from __future__ import annotations

from pathlib import Path

from store.errors import Corrupt, FormatTooNew
from store.files import Files

VERSION = 1
_PREFIX = b"mq data format "
_BYTES_MAX = 64


def check_format(root: Path, files: Files) -> None:
    """Stamp a new directory, accept an older or equal version. Raises FormatTooNew, Corrupt."""
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
    if not content.strip(b"\0"):
        _stamp(path, files)
        return
    version = content.removeprefix(_PREFIX).strip()
    if not content.startswith(_PREFIX) or not version.isdigit():
        raise Corrupt(str(path), 0, f"{content[:40]!r} is not a format stamp")
    if int(version) > VERSION:
        raise FormatTooNew(f"{path} says format {int(version)}; this program knows {VERSION}: use a newer mq")


def _stamp(path: Path, files: Files) -> None:
    file = files.open(path, create=True)
    try:
        file.pwritev([_PREFIX + b"%d\n" % VERSION], 0)
        file.datasync()
    finally:
        file.close()
    files.sync_dir(path.parent)
