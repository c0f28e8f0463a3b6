"""`python -m loadtest.bench.first_touch`: CPU time of a read from the disk, by what the pages were before.

On a virtual machine whose host takes back memory that is free, a page that the kernel takes for what it reads may be
one that the host has yet to give. The CPU time of the read is then mostly that, and who copies the page first pays:

    cached       the page cache has what is read
    at once      it was made to forget it a moment ago: the pages are free, and still here
    after 4 s    ... some seconds ago: the host has taken them

Where all three take as long, a page is a page. The first round is of pages that others had.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from loadtest.bench.disk import forget_files

MiB = 1024 * 1024
SIZE_MIB = 200
TAKEN_S = 4.0
"""After which a host has taken what is free: Linux reports it after two."""


def costs(directory: Path, size_mib: int, rounds: int, taken_s: float) -> Iterator[tuple[str, float]]:
    """Each case again and again, and its CPU time in µs a MiB."""
    buffer = bytearray(MiB)
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        for _ in range(size_mib):
            file.write(buffer)
        file.flush()
        for _ in range(rounds):
            for case, wait_s in (("cached", None), ("at once", 0.0), (f"after {taken_s:g} s", taken_s)):
                if wait_s is not None:
                    forget_files(directory)
                    time.sleep(wait_s)
                began_s = time.process_time()
                for at in range(size_mib):
                    os.preadv(file.fileno(), [buffer], at * MiB)
                yield case, (time.process_time() - began_s) / size_mib * 1e6


def main() -> None:
    """Print a line a read."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.first_touch", description=costs.__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="a disk")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mq-bench-", dir=asked.dir) as directory:
        for case, cost_us in costs(Path(directory), SIZE_MIB, asked.rounds, TAKEN_S):
            print(f"{case:12} {cost_us:7.0f} µs/MiB", flush=True)


if __name__ == "__main__":
    main()
