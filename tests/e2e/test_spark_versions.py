"""pyspark 4.0 and 4.1, each in a virtual environment of its own: all but a stream's rate limit works, and is warned of.
Installs half a gigabyte for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import venv
from pathlib import Path

import pytest
from pyspark_mq import java

from tests.spark.conftest import ROOT, Server, fill, own_server

__all__ = ["own_server"]

COUNT = 1000
TIMEOUT_S = 600


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["4.0.1", "4.1.1"])
def test_an_old_pyspark_reads_streams_and_writes_within_its_limits(
    own_server: Server, tmp_path: Path, version: str
) -> None:
    home = Path(os.environ.get("MQ_SPARK_VENVS", tmp_path)) / f"v{version}"
    python = home / "bin" / "python"
    if not python.exists():
        venv.create(home, with_pip=True)
        packages = [f"pyspark=={version}", "pyarrow>=18", "numpy", "pandas<3"]
        subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True, timeout=TIMEOUT_S)
    java.ensure()
    fill(own_server, "source", COUNT)
    for topic in ("sink", "copies"):
        own_server.create(topic, 2)
    done = subprocess.run(
        [python, ROOT / "tests" / "e2e" / "spark_old.py", own_server.url, tmp_path],
        env={**os.environ, "PYTHONPATH": str(ROOT / "spark_connector"), "PYSPARK_PYTHON": str(python)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    report = json.loads(done.stdout.splitlines()[-1])
    writes_streams = version >= "4.1"
    assert len(report["warned"]) == 1
    assert "older than 4.2: streams have no rate limit" in report["warned"][0]
    assert done.stderr.count("older than 4.2") >= 2, "each stream says so too, from Spark's own process"
    assert (report["read"], report["batches"], report["sink"]) == (COUNT, [COUNT], COUNT), "one batch, not ten"
    assert report["copies"] == (COUNT if writes_streams else 0)
    assert writes_streams or "with 4.0 write in foreachBatch" in done.stderr + report["refused"]
