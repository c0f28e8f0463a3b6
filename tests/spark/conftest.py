"""One Spark session and one real server for all tests that need them. They end with the last of these tests: idle until
pytest ends, a server and a JVM take some seconds of processor time from the others."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyspark_mq
import pytest
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark_mq.client import PROCESS_POOL, Client, Endpoint
from pyspark_mq.decode import decode, find_batches

from tests.e2e.server import DIES_WITH_US
from tests.spark.batches import Message, batch
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]

QUICK_TO_START = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:CICompilerCount=1 "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)
"""Many small jobs: what the JVM's second compiler, its collector's threads and the check of the bytecode of Spark's
classes cost never comes back."""

COMPILED_ONCE = """#!/bin/sh
unset PYTHONPATH
exec %s "$@"
"""
"""An interpreter without the path that Spark gives its Python processes: on it is pyspark as a zip file, which Python
compiles again in each of them. Without it they import the same modules as they are installed."""


class Server:
    """`mq serve` as a process, on a directory of its own."""

    def __init__(self, directory: Path, **settings: str) -> None:
        """`settings` by the names of environment variables."""
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def start(self, port: int = 0) -> None:
        """Return when it accepts connections."""
        command = [sys.executable, "-m", "gateway", "serve", "--data", str(self._directory / "data")]
        with (self._directory / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                [*DIES_WITH_US, *command, "--port", str(port)],
                cwd=ROOT,
                env=self._settings | {name: text for name, text in os.environ.items() if not name.startswith("MQ_")},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url.startswith("http"), (self._directory / "server.log").read_text()

    def stop(self) -> None:
        """SIGTERM."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.terminate()
        assert self._process.wait(PATIENCE_S) == 0
        self._process.stdout.close()

    def kill_and_start_again(self) -> None:
        """kill -9, then a new process on the same data and port."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdout.close()
        self.start(int(self.url.rsplit(":", 1)[1]))

    def create(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        self._send("PUT", f"/mq/v1/topics/{topic}", json.dumps({"partitions": partitions}).encode(), "application/json")

    def epoch(self, topic: str) -> str:
        """The identity of a topic."""
        with urllib.request.urlopen(f"{self.url}/mq/v1/topics/{topic}/offsets") as response:
            epoch: str = json.load(response)["epoch"]
            return epoch

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


@pytest.fixture(scope="package")
def mq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with an empty store."""
    server = Server(tmp_path_factory.mktemp("mq"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Server]:
    """A server for one test, which may kill it."""
    server = Server(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="package")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process's JVM, set up as docs/spark.md recommends. No `register`: it finds `mq` by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYSPARK_PYTHON", raising=False)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        pyspark_mq.prepare()
        interpreter = tmp_path_factory.mktemp("interpreter") / "python"
        interpreter.write_text(COMPILED_ONCE % os.environ["PYSPARK_PYTHON"])
        interpreter.chmod(0o755)
        patch.setenv("PYSPARK_PYTHON", str(interpreter))
        session = (
            SparkSession.builder.master("local[2,2]")
            .appName("mq-tests")
            .config("spark.driver.extraJavaOptions", QUICK_TO_START)
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
            _end_jvm()


def _end_jvm() -> None:
    """Spark itself keeps it for the next session, until this process ends."""
    gateway = SparkContext._gateway
    assert gateway is not None
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    gateway.proc.stdin.close()  # which ends it
    gateway.proc.wait(PATIENCE_S)


def load(spark: SparkSession, url: str, **options: str) -> DataFrame:
    """`spark.read.format("mq")` with these options."""
    return spark.read.format("mq").options(url=url, **options).load()


def fill(server: Server, topic: str, count: int, *, partitions: int = 2, value_bytes: int = 0) -> None:
    """Values 0 to count - 1, filled up with blanks, in batches of 100."""
    server.create(topic, partitions)
    for first in range(0, count, 100):
        messages = [Message(b"k%d" % n, (b"%d" % n).ljust(value_bytes)) for n in range(first, first + 100)]
        server.send(topic, first // 100 % partitions, messages)


def values(server: Server, topic: str) -> list[int]:
    """What a topic holds, without Spark."""
    client = Client(Endpoint(urls=(server.url,)))
    found: list[int] = []
    for partition, bounds in client.topic(topic).partitions.items():
        offset, end = bounds.beginning, bounds.end
        while offset < end:
            body = client.fetch(topic, partition, offset, end_offset=end, max_bytes=8 << 20).body
            batches = find_batches(body)
            for rows in decode(batches, topic=topic, partition=partition, start=offset, end=end, columns=["value"]):
                found += map(int, rows["value"].to_pylist())
            offset = batches.next_offset
    return sorted(found)


@pytest.fixture
def bare_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter with Spark, numpy and pyarrow, where `import pyspark_mq` fails: it follows no .pth files."""
    monkeypatch.delenv("PYTHONPATH", raising=False)  # Spark sets its own for its workers
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = site.getsitepackages()[0]
    script = tmp_path / "bare-python"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {base} -S "$@"\n')
    script.chmod(0o755)
    assert subprocess.run([script, "-c", "import numpy, pyarrow, pyspark"], check=False).returncode == 0
    missing = subprocess.run([script, "-c", "import pyspark_mq"], capture_output=True, check=False, cwd=tmp_path)
    assert b"ModuleNotFoundError" in missing.stderr
    return script
