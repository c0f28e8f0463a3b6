"""One Spark session and one real server for all tests that need them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark_mq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark_mq.client import PROCESS_POOL

from tests.spark.batches import Message, batch

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 30


@dataclass(frozen=True)
class Server:
    """A running `mq serve`."""

    url: str

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._send("PUT", f"/mq/v1/topics/{topic}", json.dumps({"partitions": partitions}).encode(), "application/json")

    def send(self, topic: str, partition: int, messages: Sequence[Message], codec: str = "none") -> None:
        """Append one batch; durable on return."""
        path = f"/topics/{topic}/partitions/{partition}"
        self._send("POST", path, batch(messages, codec=codec), "application/vnd.mq.batch")

    def _send(self, method: str, path: str, body: bytes, media_type: str) -> None:
        headers = {"Content-Type": media_type}
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request) as response:
            response.read()


@pytest.fixture(autouse=True)
def _no_idle_connections() -> Iterator[None]:
    """Each test has servers of its own: do not keep connections to those of the last."""
    yield
    PROCESS_POOL.close()


@pytest.fixture(scope="session")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an empty store, as a process."""
    directory = tmp_path_factory.mktemp("mq")
    command = [sys.executable, "-m", "gateway", "serve", "--data", str(directory / "data"), "--port", "0"]
    with (directory / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip()
        assert url.startswith("http://"), (directory / "server.log").read_text()
        yield Server(url)
    finally:
        process.terminate()
        assert process.wait(START_TIMEOUT_S) == 0
        process.stdout.close()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process's JVM, set up as docs/spark.md recommends. No `register`: it finds `mq` by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYSPARK_PYTHON", raising=False)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        pyspark_mq.prepare()
        session = (
            SparkSession.builder.master("local[2,2]")
            .appName("mq-tests")
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.python.unix.domain.socket.enabled", "true")
            .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    """`spark.read.format("mq")` with these options."""
    return spark.read.format("mq").options(url=url, **options).load()
