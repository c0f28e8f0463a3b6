"""Files that people write: settings, rules, tokens, keys, certificates. Read whole, within a bound, whatever they are.

They are read again while the server runs, so that none of them may stop it: not a directory or a pipe in their place,
not one that is endless, binary, cut, or nested until Python gives up.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

from store.limits import KiB, MiB

SETTINGS_BYTES_MAX = 1 * MiB
RULES_BYTES_MAX = 4 * MiB
TOKENS_BYTES_MAX = 16 * MiB
KEYS_BYTES_MAX = 64 * KiB
"""Of JWT keys, or of a certificate with its chain."""

KEY_PARTS_MAX = 16
"""Parts of a dotted key in TOML. Python's parser takes time by the square of them."""

# Possessive, and closed by the end of the text at last: a pass over any text takes time by its length.
_STRING_OR_COMMENT = re.compile(
    r"\"\"\"(?:\\.|[^\\])*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|\"(?:\\.|[^\"\\\n])*+\"?|'[^'\n]*+'?|#[^\n]*+", re.DOTALL
)
_LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{KEY_PARTS_MAX}}}")


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
