"""A memory limit for a server that is measured, as a container has one: a cgroup (v1 or v2; root).

Without a limit the page cache of what a server writes grows into memory that was never used since the machine started.
On a virtual machine whose host takes back what is free, the first touch of such a page costs ten times the copy into
it, and the server that runs at that moment pays. With a limit the cache uses its own pages again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from store.limits import MiB

MEMORY_BYTES = 2 * 1024 * MiB
"""Of each server: Kafka's heap is one of them."""

ROOT = Path("/sys/fs/cgroup")


@contextmanager
def memory_limited(name: str, pids: Iterable[int], root: Path = ROOT) -> Iterator[str]:
    """Keep these processes, and what they start, within MEMORY_BYTES; answers how, or why not, in a few words."""
    parent = root / "memory" if (root / "memory").is_dir() else root
    limit = "memory.limit_in_bytes" if parent != root else "memory.max"
    group = parent / f"mq-bench-{name}"
    members = list(pids)
    try:
        group.mkdir()
    except OSError as error:
        yield f"not limited: {error.strerror}"
        return
    try:
        try:
            (group / limit).write_text(f"{MEMORY_BYTES}")
            _move(members, group)
            said = f"{MEMORY_BYTES / 1024 / MiB:g} GiB for each server, its page cache included"
        except OSError as error:  # a v2 group may have no such limit
            said = f"not limited: {error.strerror}"
        yield said
    finally:
        with suppress(OSError):  # a group that is not empty goes when the machine stops
            _move(members, parent)
            group.rmdir()


def _move(pids: Iterable[int], group: Path) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            (group / "cgroup.procs").write_text(f"{pid}")
