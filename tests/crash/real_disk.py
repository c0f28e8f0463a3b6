"""Real file systems that tests may break: loop devices, small tmpfs, and drivers running on them. Needs root.

Where that is not possible the tests skip and say why.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
CYCLES = int(os.environ.get("MQ_TORTURE_CYCLES", "0"))
"""More rounds of each test than CI has time for; 0 means the test's own number."""

PACKAGES = {"xfs_io": "xfsprogs", "mkfs.xfs": "xfsprogs", "mkfs.ext4": "e2fsprogs", "strace": "strace"}


def cycles(ci_count: int) -> int:
    """How many rounds to run."""
    return CYCLES or ci_count


def need(*tools: str) -> None:
    """Skip the test, with the reason, unless we are root and the tools are there."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts file systems")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}; install it with: apt-get install {PACKAGES.get(tool, tool)}")


def run(*command: str | Path) -> None:
    """Run a tool to its end. RuntimeError with its words when it fails."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{command}: {result.stderr.strip() or result.stdout.strip()}")


@cache
def hide_mounts() -> None:
    """From now on what this process mounts is seen by its children alone.

    A mount namespace that somebody else makes (`ip netns exec` does) takes a copy of every mount it sees, which keeps
    an unmounted file system alive: shut down as it is, the next mount of the same image would be of that one.
    """
    clone_newns = 0x0002_0000
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(clone_newns):
        pytest.skip(f"cannot make a mount namespace here: {os.strerror(ctypes.get_errno())}")
    run("mount", "--make-rprivate", "/")


class Disk:
    """A file system in an image file, mounted at `mount_point`."""

    def __init__(self, kind: str, image: Path, mount_point: Path, options: str) -> None:
        self.kind = kind
        self.image = image
        self.mount_point = mount_point
        self._options = options
        self._is_mounted = False

    def mount(self) -> None:
        """Mount; a journal left by a power cut is replayed."""
        run("mount", "-t", self.kind, "-o", self._options, self.image, self.mount_point)
        self._is_mounted = True

    def unmount(self) -> None:
        if self._is_mounted:
            run("umount", self.mount_point)
            self._is_mounted = False

    def cut_power(self) -> None:
        """Drop everything that was not synced, at once. Every call on the file system fails from now on."""
        run("xfs_io", "-x", "-c", "shutdown", self.mount_point)


@contextmanager
def loop_disk(
    kind: str, directory: Path, *, size: str, mkfs: Sequence[str] = (), options: str = "loop"
) -> Iterator[Disk]:
    """A fresh file system of `kind` on an image in `directory`; skips where the kernel refuses to mount."""
    hide_mounts()
    image, mount_point = directory / f"{kind}.img", directory / f"{kind}.mnt"
    mount_point.mkdir(exist_ok=True)
    run("truncate", "-s", size, image)
    run(f"mkfs.{kind}", "-q", *mkfs, image)
    disk = Disk(kind, image, mount_point, options)
    try:
        disk.mount()
    except RuntimeError as error:
        pytest.skip(f"cannot mount {kind} here: {error}")
    try:
        yield disk
    finally:
        disk.unmount()
        image.unlink()


@contextmanager
def small_tmpfs(directory: Path, size: str) -> Iterator[Path]:
    """A tmpfs of a given size."""
    mount_point = directory / "tmpfs"
    mount_point.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", mount_point)
    except RuntimeError as error:
        pytest.skip(f"cannot mount tmpfs here: {error}")
    try:
        yield mount_point
    finally:
        run("umount", mount_point)


class Driver:
    """A running `tests.crash.driver`; every line it says goes to `note`."""

    def __init__(self, root: Path, note: Callable[[str], None], *arguments: str, under: Sequence[str] = ()) -> None:
        environment = None
        interpreter = sys.executable
        if under:
            # The interpreter itself: a wrapper in its place would take the faults that are meant for the store.
            interpreter = os.path.realpath(sys.executable)
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])}
        command = [*under, interpreter, "-m", "tests.crash.driver", str(root), *arguments]
        self._note = note
        self._process = subprocess.Popen(
            command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
        )
        self.lines: list[str] = []

    def next_line(self) -> str | None:
        """The next whole line; None when it has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith("\n"):
            return None
        line = line.rstrip("\n")
        self.lines.append(line)
        self._note(line)
        return line

    def until(self, word: str, count: int = 1) -> str:
        """Read on until the `count`-th line from here that begins with `word`."""
        while (line := self.next_line()) is not None:
            count -= line.split(" ")[0] == word
            if count <= 0:
                return line
        raise AssertionError(f"the driver ended before it said {word!r}; it said {self.lines[-3:]}")

    def drain(self) -> list[str]:
        """Everything it still says up to its end."""
        begin = len(self.lines)
        while self.next_line() is not None:
            pass
        self._process.wait()
        return self.lines[begin:]

    def kill(self) -> None:
        """kill -9, and take in what it had said before."""
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.kill()
            self.drain()
            self._process.stdout.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
