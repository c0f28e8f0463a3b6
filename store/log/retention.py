"""Which log files may go: a pure decision from their ages and sizes, and from what still needs them.

Files go whole and oldest first. The newest file stays. A file that holds the body of a pending schedule, or anything
else that was pinned, stays, and so does everything behind it: the log has no holes.

Example: files of 100 bytes at 0, 100, 200, 300; the newest record of each is 9, 6, 4 and 0 hours old.

    keep 5 hours                      0 and 100 go
    keep 5 hours, pinned at 150       0 goes
    keep 250 bytes                    0 and 100 go: what is left is 200 bytes, and one more file would be 300
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class LogFile(NamedTuple):
    """One file of the log. `newest_ms` is the store time of its last record."""

    start: int
    end: int
    newest_ms: int


def decide_expired(
    log_files: Sequence[LogFile],
    *,
    now_ms: int,
    retention_ms: int | None,
    retention_bytes: int | None,
    pinned_position: int,
) -> list[LogFile]:
    """The files that may be removed now, oldest first. None means "no limit". Nothing at or behind
    `pinned_position` is named."""
    expired: list[LogFile] = []
    kept_bytes = sum(file.end - file.start for file in log_files)
    for file in log_files[:-1]:
        is_old = retention_ms is not None and file.newest_ms < now_ms - retention_ms
        is_too_much = retention_bytes is not None and kept_bytes > retention_bytes
        if file.end > pinned_position or not (is_old or is_too_much):
            break
        expired.append(file)
        kept_bytes -= file.end - file.start
    return expired
