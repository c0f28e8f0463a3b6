"""Data directories that older versions of mq wrote: what a test begins with that shows they are still read.

before-0029.tar.xz  of the version before docs/decisions/0029-keys.md. Topic `orders`, 4 partitions: JSON keys "u1", 7,
                    {"a": 1}, and ü"x (values {"n": 1} to {"n": 4}), key u1 as bytes ({"n": 5}). Schedules of key "u1":
                    {"n": 6} and, sent to partition 3, {"n": 8}, overdue; {"n": 7} until March 2027. Group `billing`:
                    1 and 5 wait in the timer to be tried again, 2 is a dead letter, 3 and 4 are done.
"""

from __future__ import annotations

import tarfile
from pathlib import Path


def unpack(name: str, root: Path) -> Path:
    """The data directory of a sample, in `root`."""
    with tarfile.open(Path(__file__).parent / f"{name}.tar.xz") as archive:
        archive.extractall(root, filter="data")
    return root
