"""Lines in the trail of a data directory from commands that work on it beside the server."""

from __future__ import annotations

import fcntl
import os
import pwd
from pathlib import Path

from gateway.auth.operator_files import give_to_owner
from gateway.cli.terminal import print_note
from store.clock import SystemClock


def record(root: Path, action: str, what: dict[str, str], **details: object) -> None:
    """Say what was done, and by which user of this machine; durable on return. What cannot be said is noted: a token
    that must go goes on a full disk, too."""
    # Here, not at the top: it loads the store.
    from gateway.api.trail_files import DIRECTORY, TOKENS, Act, Ring
    from store.files import OsFiles

    act = Act(action=action, principal=f"os:{_user()}", outcome="done", object=what, details=details)
    directory = root / DIRECTORY
    ring = Ring(directory, TOKENS, OsFiles())
    try:
        directory.mkdir(exist_ok=True)
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)  # a ring has one writer at a time
            ring.append([(SystemClock().now_ms(), act)])
            for made in (directory, ring.path):
                give_to_owner(made, like=root)
        finally:
            os.close(lock)
    except OSError as error:
        print_note(f"The trail does not say so, it cannot be written: {error}")
    finally:
        ring.close()


def _user() -> str:
    uid = os.getuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
