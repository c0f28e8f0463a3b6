"""Data directories of every version whose files differ, and what is in each: `python -m tests.samples.versions`.

An archive has the directory `data` and `expected.json`. It is what `mq serve` of one commit left, by the same requests
each time, killed or stopped; what a commit did not have yet (groups, tokens, schedule keys) is left out.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
COMMITS = {
    "52eefab": "killed",  # schedules: the first one with a server
    "2be5dcc": "killed",  # groups, repeated sends, tokens
    "f36bdb8": "stopped",  # marks of repeated sends in the snapshot; `pending` of the timer
    "50aca4f": "killed",  # an index that is being built says so
    "0cb795b": "killed",  # entries kept in the index snapshot
    "28b2abe": "killed",  # schedules name partitions, queues are stated
    "7d9d178": "killed",  # keys of topics, schedule keys: the last one of format 1
    "2554d93": "killed",  # the first one of format 2
    "9279cd7": "stopped",  # 0.2.0
    "9a5804f": "killed",  # recurring schedules
    "47bc342": "stopped",  # after 0.2.0
    "0c74b7b": "killed",  # leases by run, sealed queues
    "fa49ee7": "killed",  # light queues: format 3
}
"""And how the server ended."""

WITH_LIGHT_QUEUES = frozenset(("fa49ee7",))
"""They have an index in RocksDB."""

INBOX = "user/1"
DEVICE = "phone"

SETTINGS = {"store.commit_log_file_bytes": 4 << 20, "store.extent_bytes": 512 << 10, "store.disk_floor_bytes": 0}


def settings_of(commit: str) -> dict[str, object]:
    """Of the server of a commit, and of one that reads what it left."""
    return SETTINGS | ({"store.index": "rocksdb"} if commit in WITH_LIGHT_QUEUES else {})


PARTITIONS = 2
DUE_AFTER_MS = 3_600_000
LATER_AFTER_MS = 200 * 86_400_000


class Sample(NamedTuple):
    """What was done to one server."""

    made_ms: int
    records: dict[int, list[str]]
    """Values, by partition."""

    due: list[str]
    """Values of schedules that are due DUE_AFTER_MS behind it."""

    later: list[str]
    """Values of schedules that are due LATER_AFTER_MS behind it."""

    schedule_key: str | None
    """Of the first of `later`."""

    committed: int | None
    """By the group `stream`, in partition 0."""

    left: list[str] | None
    """What the group `work` has not acknowledged."""

    token_id: str | None
    recurring: str | None = None
    """A recurring schedule that has not fired."""

    inbox: list[str] | None = None
    """Values in the light queue INBOX of partition 0, in order; then comes the first of `due`. The group DEVICE has
    committed 1."""


def unpack_version(commit: str, root: Path) -> Sample:
    """The data directory of a commit in `root / "data"`, and what is to be found in it."""
    with tarfile.open(HERE / f"{commit}.tar.xz") as archive:
        archive.extractall(root, filter="data")
    fields = json.loads((root / "expected.json").read_text())
    records = {int(partition): values for partition, values in fields.pop("records").items()}
    return Sample(records=records, **fields)
