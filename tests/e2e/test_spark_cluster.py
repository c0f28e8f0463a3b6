"""A standalone Spark cluster, one master and two workers on this machine, whose Python does not have the connector.
Takes five Java machines.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest
from pyspark_mq import java

from tests.spark.conftest import ROOT, Server, bare_python, fill, own_server, values

__all__ = ["bare_python", "own_server"]

COUNT = 20_000
TIMEOUT_S = 900
HOME = Path(pyspark.__file__).parent


@contextmanager
def daemon(log: Path, *arguments: str, **environment: str) -> Iterator[None]:
    """A master or a worker, as `sbin/start-*.sh` of a Spark download would start it."""
    command = [str(HOME / "bin" / "spark-class"), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, "SPARK_HOME": str(HOME), **environment}
        )
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def said(log: Path, pattern: str) -> str:
    """Wait until a log has a line like this."""
    deadline = time.monotonic() + TIMEOUT_S
    while (found := re.search(pattern, log.read_text())) is None:
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.1)
    return found[0]


@pytest.mark.matrix
def test_two_workers_read_and_write_in_parallel_without_the_package(
    own_server: Server, tmp_path: Path, bare_python: Path
) -> None:
    server = own_server
    java.ensure()
    fill(server, "source", COUNT)
    server.create("sink", 2)
    log = tmp_path / "master.log"
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with daemon(log, *master):
        url = said(log, r"spark://127\.0\.0\.1:\d+")
        worker = ("org.apache.spark.deploy.worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0")
        with (
            daemon(tmp_path / "w1.log", *worker, "--host", "127.0.0.1", "--work-dir", str(tmp_path / "w1"), url),
            daemon(tmp_path / "w2.log", *worker, "--host", "127.0.0.1", "--work-dir", str(tmp_path / "w2"), url),
        ):
            for name in ("w1.log", "w2.log"):
                said(tmp_path / name, "Successfully registered with master")
            job = subprocess.run(
                [sys.executable, "-m", "tests.e2e.spark_job", "cluster", server.url, url, "source", "sink"],
                cwd=ROOT,
                env={**os.environ, "PYSPARK_PYTHON": str(bare_python), "SPARK_LOCAL_IP": "127.0.0.1"},
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
    assert job.returncode == 0, job.stderr[-5000:]
    report = json.loads(job.stdout.splitlines()[-1])
    assert report["count"] == COUNT
    assert not report["has_package"]
    assert len(report["executors"]) == 2, report
    assert report["tasks"] >= 8
    assert values(server, "sink") == list(range(COUNT))
