"""`mq` run to its end in this process: what it prints and its exit code are those of the command."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from typer.testing import CliRunner

from gateway.cli import context, main
from gateway.cli.client import CA_VARIABLE


@contextmanager
def log_as_before() -> Iterator[None]:
    """What is done to the process's log within the block is undone: `mq serve` sends it to its stderr, which is closed
    when the command has ended."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def mq(
    *arguments: str, url: str | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run one command with these settings and no others of ours."""
    ours: dict[str, str | None] = {
        name: None
        for name in (CA_VARIABLE, context.VARIABLE, "MQ_URL", "MQ_TOKEN", *os.environ)
        if name.startswith("MQ_")
    }
    ours["XDG_CONFIG_HOME"] = "/nonexistent"  # no contexts of whoever runs the tests
    given = environment if url is None else {**environment, "MQ_URL": url}
    with (
        log_as_before(),
        CliRunner().isolation(stdin, env={**ours, **given}) as (out, errors, _),
        patch.object(sys, "argv", ["mq", *arguments]),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        else:
            code = 0
        assert isinstance(code, int)
        sys.stdout.flush()
        sys.stderr.flush()
        return subprocess.CompletedProcess(arguments, code, out.getvalue().decode(), errors.getvalue().decode())
