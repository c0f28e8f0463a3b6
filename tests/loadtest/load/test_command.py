"""`make load`: what Locust is started with, and that a run on a server of its own ends in a report."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import orjson
import psutil
import pytest

from loadtest.load.__main__ import locust
from tests.waiting import PATIENCE_S


def test_locust_is_given_what_was_asked_for(tmp_path: Path) -> None:
    options = argparse.Namespace(profile="ramp", users=100, duration="2m", out=tmp_path, workers=3, ui=False, ui_port=1)
    command = " ".join(locust(options, "http://there", 77))
    for part in (
        "profiles/ramp.py", "--host http://there", "--users 100", "--spawn-rate 20", "--run-time 2m", "--processes 3",
        "--mq-server-pid 77", "--headless",
    ):  # fmt: skip
        assert part in command
    options.ui = True
    assert "--web-port 1" in " ".join(locust(options, "http://there", 0))
    assert "--headless" not in locust(options, "http://there", 0)


@pytest.mark.long
def test_a_run_on_a_server_of_its_own_ends_in_a_report(tmp_path: Path) -> None:
    flags = ["--profile", "send", "--users", "3", "--duration", "5s", "--out", str(tmp_path), "--dir", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.load", *flags], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert orjson.loads((tmp_path / "run.json").read_bytes())["own_server"] is True
    assert (tmp_path / "report.html").exists(), done.stdout + done.stderr
    assert "everything as promised" in (tmp_path / "report.html").read_text()


@pytest.mark.matrix
def test_a_run_that_is_stopped_leaves_nothing_behind(tmp_path: Path) -> None:
    flags = ["--profile", "send", "--users", "1", "--duration", "1h", "--out", str(tmp_path), "--dir", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "loadtest.load", *flags], stdout=subprocess.DEVNULL)
    try:
        deadline_s = time.monotonic() + PATIENCE_S
        while not (tmp_path / "run_mq_history.csv").exists():
            assert time.monotonic() < deadline_s
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2  # a server and Locust
        process.terminate()
        process.wait(PATIENCE_S)
        assert not [child for child in children if child.is_running()]
    finally:
        process.kill()
    assert (tmp_path / "report.html").exists()
