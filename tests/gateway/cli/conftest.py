"""For tests of the command line: what is put together of its commands is so once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from unittest.mock import patch

import pytest
import typer.main
import typer.testing

from gateway import cli


@pytest.fixture(scope="session", autouse=True)
def commands_are_put_together_once() -> Iterator[None]:
    """A process of `mq` does it once too: nine tenths of what a command takes in this process."""
    once = cache(typer.main.get_command)
    with (
        patch.object(cli, "command_line", cache(cli.command_line)),
        patch.object(typer.main, "get_command", once),
        patch.object(typer.testing, "_get_command", once),
    ):
        yield
