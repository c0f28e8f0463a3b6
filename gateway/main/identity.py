"""The name of a data directory: made once, kept for ever, so that clients tell one server's data from another's.

It is the cluster id of the REST API, and part of nothing else: copying a directory copies its name.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from store.files import Files
from store.snapshot import Snapshot, SnapshotFiles

CLUSTER = "cluster"
_NAME_BYTES = 11


def cluster_id(root: Path, files: Files) -> str:
    """The id in an open data directory; made, and durable on return, when there is none. Raises Corrupt, OSError."""
    kept = SnapshotFiles(root, CLUSTER, files)
    snapshot = kept.load()
    if snapshot is None:
        snapshot = Snapshot(0, secrets.token_hex(_NAME_BYTES).encode())
        kept.save(snapshot)
    return snapshot.content.decode("ascii")
