"""A Spark driver that is killed in mid-batch: what it writes is in the topic once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyspark_mq.client import Client, Endpoint

from tests.e2e.spark_job import BATCH_RECORDS
from tests.spark.conftest import ROOT, Server, fill, own_server, values

__all__ = ["own_server"]

COUNT = 80_000
KILLS = int(os.environ.get("MQ_SPARK_KILLS", "3"))
JOB_TIMEOUT_S = 600


@pytest.mark.long
def test_a_driver_that_is_killed_in_mid_batch_writes_each_record_once(own_server: Server, tmp_path: Path) -> None:
    server = own_server
    fill(server, "source", COUNT, value_bytes=1000)  # so that a task sends several batches
    server.create("sink", 3)
    command = [sys.executable, "-m", "tests.e2e.spark_job", "copy", server.url, "source", "sink", str(tmp_path / "cp")]
    client = Client(Endpoint(urls=(server.url,)))

    def stored() -> int:
        return sum(bounds.end for bounds in client.topic("sink").partitions.values())

    for kill in range(KILLS):
        with (tmp_path / "job.log").open("a") as log:
            job = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        aim = kill * BATCH_RECORDS + BATCH_RECORDS // 2  # in the middle of a micro-batch
        deadline = time.monotonic() + JOB_TIMEOUT_S
        while stored() < aim:
            assert job.poll() is None, (tmp_path / "job.log").read_text()[-5000:]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.killpg(job.pid, signal.SIGKILL)  # Python, the Java machine and its workers, at once
        job.wait()
        commits = tmp_path / "cp" / "commits"
        done = len([c for c in commits.iterdir() if c.name.isdecimal()]) if commits.exists() else 0
        torn = stored() - done * BATCH_RECORDS
        print(
            f"killed with {done} micro-batches committed and {torn:,} of {BATCH_RECORDS:,} records of the next stored"
        )
    with (tmp_path / "job.log").open("a") as log:
        done_job = subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False, timeout=JOB_TIMEOUT_S)
    assert done_job.returncode == 0, (tmp_path / "job.log").read_text()[-5000:]
    assert values(server, "sink") == list(range(COUNT))
