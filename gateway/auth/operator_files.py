"""Files that people write: settings, rules, tokens, keys, certificates. Read whole, within a bound, whatever they are;
those that the server writes too are replaced as a whole.

They are read again while the server runs, so that none of them may stop it: not a directory or a pipe in their place,
not one that is endless, binary, cut, or nested until Python gives up.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from store.limits import KiB, MiB

SETTINGS_BYTES_MAX = 1 * MiB
RULES_BYTES_MAX = 4 * MiB
TOKENS_BYTES_MAX = 16 * MiB
KEYS_BYTES_MAX = 64 * KiB
"""Of JWT keys, or of a certificate with its chain."""

_MODE = 0o600

KEY_PARTS_MAX = 16
"""Parts of a dotted key in TOML. Python's parser takes time by the square of them."""

# Possessive, and closed by the end of the text at last: a pass over any text takes time by its length.
_STRING_OR_COMMENT = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|\"(?:\\.|[^\"\\\n])*+\"?|'[^'\n]*+'?|#[^\n]*+", re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{KEY_PARTS_MAX}}}")


class WatchedFiles:
    """Files that are read again when one has changed: by its time, size or inode, so that a rename (ours, an editor's,
    Kubernetes') counts."""

    def __init__(self, *paths: Path) -> None:
        self.paths = paths
        self._seen: list[tuple[int, int, int] | None] | None = None
        self._refusal = ""

    def have_changed(self) -> bool:
        """Whether one has since this was asked last, or could not be read then. The first time: yes."""
        before, self._seen = self._seen, list(map(_signature, self.paths))
        return before != self._seen

    def refused(self, error: Exception) -> bool:
        """They cannot be used; whether that was not said before. An owner, a right or a free handle may come later,
        which no signature shows: where one of these was the reason, they are looked at again."""
        if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
            self._seen = None
        before, self._refusal = self._refusal, str(error)
        return before != self._refusal

    def used(self) -> None:
        """They are in use as they are."""
        self._refusal = ""


def _signature(path: Path) -> tuple[int, int, int] | None:
    """None: there is no file."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def read_file(path: Path, bytes_max: int, *, may_be_pipe: bool = False) -> bytes:
    """All of a file. Raises OSError, or ValueError for one that is too large or no file.

    `may_be_pipe`: wait for what a pipe says, as a shell's `<(command)` is one. Else nothing is waited for.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if may_be_pipe else os.O_NONBLOCK))
    try:
        if not (may_be_pipe or stat.S_ISREG(os.fstat(fd).st_mode)):
            raise ValueError("not a regular file")
        with open(fd, "rb", closefd=False) as file:
            content = file.read(bytes_max + 1)
    finally:
        os.close(fd)
    if len(content) > bytes_max:
        raise ValueError(f"larger than {bytes_max} bytes")
    return content


def parse_toml(text: str) -> dict[str, Any]:
    """The document of a TOML file. Raises ValueError."""
    if _LONG_KEY.search(_STRING_OR_COMMENT.sub("s", text)):
        raise ValueError(f"a key of more than {KEY_PARTS_MAX} parts")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("nested too deep") from None


def replace_file(path: Path, content: bytes) -> None:
    """Have a file with this content, readable by its owner alone: whole or not at all, and durable on return."""
    aside = path.with_name(path.name + ".new")
    aside.unlink(missing_ok=True)  # of a change that was killed
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        give_to_owner(aside, like=path if path.exists() else path.parent)
        os.fsync(fd)
    os.replace(aside, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def give_to_owner(path: Path, *, like: Path) -> None:
    """Give a file that root makes to the owner of its directory: the server, which is to read it."""
    if os.geteuid() == 0:
        owner = like.stat()
        os.chown(path, owner.st_uid, owner.st_gid)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """An exclusive lock on this file among those who take it."""
    lock = path.with_name(path.name + ".lock")
    fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
    try:
        give_to_owner(lock, like=path.parent)
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
