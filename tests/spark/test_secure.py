"""A server with tokens and TLS: reads and writes with the options `token` and `caFile`, without a JVM."""

from __future__ import annotations

import ssl
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark_mq.batch import BatchReader
from pyspark_mq.client import PROCESS_POOL, Client
from pyspark_mq.errors import ServerError, ServerUnavailable
from pyspark_mq.identity import Numbered
from pyspark_mq.options import Options, WriteOptions
from pyspark_mq.rows import Column
from pyspark_mq.sending import Counts, write

from loadtest.certificates import write_certificate
from tests.spark.conftest import ROOT, Server


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, dict[str, str]]]:
    """The server, and the options of someone who may do anything."""
    directory = tmp_path_factory.mktemp("secure")
    cert, key = directory / "cert.pem", directory / "key.pem"
    write_certificate(cert, key)
    making = [sys.executable, "-m", "gateway", "token", "create", "spark", "--data", str(directory / "data")]
    made = subprocess.run([*making, "--allow", "admin"], cwd=ROOT, capture_output=True, text=True, check=True)
    (token,) = (word for word in made.stdout.split() if word.startswith("mq_"))
    server = Server(directory, MQ_AUTH_ENABLED="true", MQ_TLS_CERT_FILE=str(cert), MQ_TLS_KEY_FILE=str(key))
    server.start()
    request = urllib.request.Request(f"{server.url}/mq/v1/topics/t", b'{"partitions": 1}', method="PUT")
    request.add_header("Authorization", f"Bearer {token}")
    trusting = ssl.create_default_context(cafile=str(cert))
    with urllib.request.urlopen(request, context=trusting) as answer:
        answer.read()
    yield server, {"url": server.url, "token": token, "caFile": str(cert)}
    PROCESS_POOL.close()
    server.stop()


def values(options: dict[str, str]) -> list[bytes]:
    reader = BatchReader(Options.parse({**options, "subscribe": "t"}), ("value",))
    return [value for task in reader.partitions() for rows in reader.read(task) for value in rows["value"].to_pylist()]


def test_what_is_written_with_a_token_over_tls_is_read(secure: tuple[Server, dict[str, str]]) -> None:
    _, options = secure
    parsed = WriteOptions.parse({**options, "topic": "t"})
    counts = write(
        [pa.record_batch({"value": ["a", "b"]})],
        (Column("value", 0),),
        topic=parsed.topic,
        identity=Numbered("q", 0, 0),
        new_client=lambda: Client(parsed.endpoint),
    )
    assert counts == Counts(2, 0)
    assert values(options) == [b"a", b"b"]


def test_nobody_without_a_token_gets_in(secure: tuple[Server, dict[str, str]]) -> None:
    _, options = secure
    with pytest.raises(ServerError, match="answered 401"):
        values({**options, "token": "mq_wrong_token"})


def test_a_server_that_is_not_trusted_is_not_spoken_to(secure: tuple[Server, dict[str, str]], tmp_path: Path) -> None:
    _, options = secure
    other = tmp_path / "other.pem"
    write_certificate(other, tmp_path / "other.key")
    with pytest.raises(ServerUnavailable, match=r"is not trusted: .*caFile"):
        values({**options, "caFile": str(other)})
    with pytest.raises(ServerUnavailable, match="is not trusted"):
        values({name: value for name, value in options.items() if name != "caFile"})
