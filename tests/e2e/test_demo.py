"""The demo as a newcomer runs it, with fewer flights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

FLIGHTS = 5_000


def start(tmp_path: Path, *flags: str, wrapper: Sequence[str] = ()) -> subprocess.Popen[str]:
    """The demo, with its temporary folders in `tmp_path`."""
    command = [*wrapper, sys.executable, "-u", "-m", "loadtest.demo", "--flights", str(FLIGHTS), *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def only_child(pid: int) -> int:
    """The process id of the one process that another has started."""
    [child] = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(child)


def test_every_flight_goes_all_the_way_and_spark_agrees(tmp_path: Path) -> None:
    with start(tmp_path) as demo:
        output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, output
    for line in (
        rf"sent +{FLIGHTS:,} ",
        rf"received +{FLIGHTS:,} ",
        r"fired +2,000 +of 2,000 scheduled",
        r"early +0 ",
        r"lost +0 ",
        r"duplicated +0 ",
        r"Spark equals direct +yes ",
        r"All checks passed\.",
    ):
        assert re.search(line, output), f"{line} is missing in:\n{output}"
    assert "\x1b" not in output
    assert not list(tmp_path.glob("mq-demo-*"))


BACKGROUND = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh")
"""Runs a command as a script's `command &` does: with SIGINT ignored."""


@pytest.mark.parametrize(
    ("number", "wrapper"),
    [
        pytest.param(signal.SIGINT, (), id="SIGINT-terminal", marks=pytest.mark.matrix),
        pytest.param(signal.SIGTERM, BACKGROUND, id="SIGTERM-background"),
        pytest.param(signal.SIGINT, BACKGROUND, id="SIGINT-background", marks=pytest.mark.matrix),
        pytest.param(signal.SIGTERM, (), id="SIGTERM-terminal", marks=pytest.mark.matrix),
    ],
)
def test_an_interrupted_demo_leaves_nothing_behind(
    tmp_path: Path, number: signal.Signals, wrapper: Sequence[str]
) -> None:
    with start(tmp_path, "--no-spark", wrapper=wrapper) as demo:
        assert demo.stdout is not None
        first = demo.stdout.readline()
        assert first.startswith("server "), first
        server = only_child(demo.pid)
        demo.send_signal(number)
        output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, output
    assert "interrupted" in output
    with pytest.raises(ProcessLookupError):
        os.kill(server, 0)
    assert not list(tmp_path.iterdir())


def test_a_server_that_dies_fails_the_demo_by_name(tmp_path: Path) -> None:
    with start(tmp_path, "--no-spark") as demo:
        assert demo.stdout is not None
        demo.stdout.readline()
        server = only_child(demo.pid)
        os.kill(server, signal.SIGKILL)
        output, _ = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 1, output
    assert "FAILED: -m gateway serve ended with exit code -9" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.matrix
def test_flights_go_by_way_of_a_real_kafka_and_none_is_lost_or_doubled(tmp_path: Path) -> None:
    with start(tmp_path, "--kafka", "--no-spark", "--flights", "60000") as demo:
        output, _ = demo.communicate(timeout=300)
    assert demo.returncode == 0, output
    for line in (r"moved to kafka1 in ", r"moved to local in ", r"lost +0 ", r"duplicated +0 ", r"All checks passed\."):
        assert re.search(line, output), f"{line} is missing in:\n{output}"
    assert not list(tmp_path.glob("mq-demo-*"))
