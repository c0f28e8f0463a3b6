"""What a command or a server loads: not what it does not use. Each module costs every start."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import typer
import typer.main

from gateway import cli
from gateway.cli import offline
from tests.gateway.cli.command import mq


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("gateway.cli", ("gateway.main.wiring", "uvloop", "jwt", "cryptography", "aiohttp", "aiokafka")),
        ("gateway.main.wiring", ("jwt", "cryptography")),
    ],
)
def test_what_is_not_used_is_not_loaded(module: str, unused: tuple[str, ...]) -> None:
    program = f"import sys, {module}; print(*(set({unused!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_only_the_command_that_is_named_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []
    original = typer.main.get_command_from_info

    def noted(command_info: Any, **more: Any) -> Any:
        made.append(command_info.callback)
        return original(command_info, **more)

    monkeypatch.setattr(typer.main, "get_command_from_info", noted)
    monkeypatch.setattr(typer.main, "get_command", inspect.unwrap(typer.main.get_command))  # not what tests keep
    monkeypatch.setattr(cli, "command_line", inspect.unwrap(cli.command_line))
    assert mq("verify", "--help").returncode == 0
    assert made == [offline.verify]
    made.clear()
    assert mq("topic", "list", "--help").returncode == 0
    topic = cli.COMMANDS["topic"]
    assert isinstance(topic, typer.Typer)
    assert set(made) == {info.callback for info in topic.registered_commands}
    made.clear()
    assert "verify" in mq("verfy").stderr, "a word that is none is compared with all"
    assert len(made) > 50
