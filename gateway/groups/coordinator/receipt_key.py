"""The key that signs receipts: made at the first start, kept in the data directory, readable by its owner alone.

Files `receipt-key.0` and `receipt-key.1`, format of store/snapshot.py; the content is 32 random bytes. A key that was
lost or damaged is replaced: receipts that consumers hold are void then, and their records are delivered again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from secrets import token_bytes

from store.files import Files
from store.snapshot import Snapshot, SnapshotFiles

log = logging.getLogger(__name__)

KEY_BYTES = 32
NAME = "receipt-key"


def load_or_make_key(directory: Path, files: Files, *, make: Callable[[int], bytes] = token_bytes) -> bytes:
    """The key of a data directory; durable on return. Blocks. Raises OSError, Corrupt."""
    saved = _slots(directory, files).load()
    if saved is not None and len(saved.content) == KEY_BYTES:
        return saved.content
    key = make(KEY_BYTES)
    keep_key(directory, files, key)
    log.info("receipts are signed with a new key data_dir=%s", directory)
    return key


def keep_key(directory: Path, files: Files, key: bytes) -> None:
    """Have a data directory keep this key; durable on return. Blocks. Raises OSError."""
    _slots(directory, files).save(Snapshot(0, key))


def _slots(directory: Path, files: Files) -> SnapshotFiles:
    return SnapshotFiles(directory, NAME, files, is_private=True)
