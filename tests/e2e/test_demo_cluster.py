"""`make demo-cluster` as a newcomer runs it, with fewer flights."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.cluster.etcd_server import need_etcd
from tests.waiting import PATIENCE_S

FLIGHTS = 60_000


def start(tmp_path: Path, *flags: str) -> subprocess.Popen[str]:
    need_etcd()
    command = [sys.executable, "-u", "-m", "loadtest.demo_cluster", *flags]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


@pytest.mark.matrix
def test_every_flight_goes_all_the_way_although_a_node_dies(tmp_path: Path) -> None:
    with start(tmp_path, "--flights", str(FLIGHTS)) as demo:
        output, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, output
    for line in (
        r"partition 0 moved from n\d to n\d in \d+ ms",
        r"node n2 was killed",
        r"node n2 is back",
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
    assert not list(tmp_path.glob("mq-demo-*"))


@pytest.mark.matrix
def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with start(tmp_path, "--flights", str(FLIGHTS), "--no-spark") as demo:
        assert demo.stdout is not None
        while "node n3" not in (line := demo.stdout.readline()):
            assert line, "it ended"
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children").read_text().split()
        assert len(children) == 4, "etcd and three nodes"
        demo.send_signal(signal.SIGINT)
        output, _ = demo.communicate(timeout=2 * PATIENCE_S)
    assert demo.returncode == 130, output
    for child in children:
        with pytest.raises(ProcessLookupError):
            os.kill(int(child), 0)
    assert not list(tmp_path.iterdir())
