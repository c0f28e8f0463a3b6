"""Runs on real servers: one that dies, an attacker that fails, an attack that cannot be prepared: failed rows."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from loadtest.attack import run as run_module
from loadtest.attack.attack import Attack, Row
from loadtest.attack.attacker import Attacker, SetupFailed
from loadtest.attack.run import Run
from loadtest.attack.watch import NotMeasured, memory

NUMBERS = {"count": 1}


async def harmless(attacker: Attacker, *, count: int) -> None:
    for _ in range(count):
        await attacker.ask("GET", "/topics")


async def kill(attacker: Attacker, *, count: int) -> None:
    os.kill(attacker.target.pid, signal.SIGKILL)


async def fail(attacker: Attacker, *, count: int) -> None:
    attacker.saw("500", count)
    attacker.wrong("it answered 500")


async def die(attacker: Attacker, *, count: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def refuse(attacker: Attacker, *, count: int) -> None:
    raise SetupFailed("no topic")


def attack(name: str, run: object, **others: object) -> Attack:
    return Attack(name=name, tried="{count} times", run=run, full=NUMBERS, short=NUMBERS, **others)  # type: ignore[arg-type]


def rows_of(tmp_path: Path, *attacks: Attack) -> list[Row]:
    told: list[Row] = []
    run = Run(tmp_path, is_short=True, tell=told.append)
    run.attack(attacks)
    assert {row.name: row for row in told} == {row.name: row for row in run.rows}
    return run.rows


@pytest.mark.matrix
def test_a_row_fails_for_itself_alone_and_has_no_numbers_without_a_victim(tmp_path: Path) -> None:
    held, killed, wrong, unprepared, died = rows_of(
        tmp_path, attack("held", harmless), attack("killed", kill), attack("wrong", fail),
        attack("unprepared", harmless, prepare=refuse), attack("died", die),
    )  # fmt: skip
    assert held.is_good, held
    assert held.figures is not None
    assert held.seen == {"200": 1}
    assert killed.figures is None
    assert not killed.is_good
    assert "exit code -9" in " ".join(killed.problems)
    assert wrong.figures is not None
    assert wrong.problems == ["it answered 500"]
    assert wrong.seen == {"500": 1}
    assert unprepared.figures is None
    assert unprepared.problems == ["the attack could not be prepared: no topic"]
    assert died.problems == ["the attacker died"]
    assert not list(tmp_path.iterdir())


def test_memory_past_all_bounds_ends_the_attack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "STOP_RSS_BYTES", 1)
    [row] = rows_of(tmp_path, attack("a", harmless, prepare=harmless))
    assert "ended by us at" in row.problems[0]


def test_a_process_that_is_gone_has_no_memory() -> None:
    assert memory(os.getpid()).peak_bytes >= memory(os.getpid()).rss_bytes > 0
    dead = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)  # dead, and nobody has taken its exit code
    with pytest.raises(NotMeasured):
        memory(dead)
    os.waitpid(dead, 0)
    with pytest.raises(NotMeasured):
        memory(dead)
