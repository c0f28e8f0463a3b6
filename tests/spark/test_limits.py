"""Limits of a real server that a write job can meet, at the limit and beyond it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark_mq.client import Client, Endpoint
from pyspark_mq.errors import ServerUnavailable
from pyspark_mq.identity import Identity, Keyed, Numbered
from pyspark_mq.rows import Column
from pyspark_mq.sending import Counts, write

from tests.spark.conftest import Server, values

PRODUCERS = 3


def test_a_stream_of_more_tasks_than_the_server_remembers_producers_is_told_so(tmp_path: Path) -> None:
    server = Server(tmp_path, MQ_STORE_PRODUCERS_MAX=str(PRODUCERS))
    server.start()
    server.create("t", 1)

    def task(identity: Identity, number: int) -> Counts:
        rows = pa.record_batch({"value": [str(number)]})
        endpoint = Endpoint(urls=(server.url,))
        new_client = lambda: Client(endpoint)  # noqa: E731
        return write([rows], (Column("value", 0),), topic="t", identity=identity, new_client=new_client)

    for number in range(PRODUCERS):
        assert task(Numbered("stream", number, 0), number) == Counts(1, 0)
    with pytest.raises(ServerUnavailable, match=r"429/42950.*coalesce.*store\.producers_max"):
        task(Numbered("stream", PRODUCERS, 0), PRODUCERS)
    assert task(Numbered("stream", 0, 1), PRODUCERS) == Counts(1, 0), "those it knows go on"
    assert task(Keyed("job", PRODUCERS, 0), PRODUCERS + 1) == Counts(1, 0), "jobs without a writeId are no producers"
    assert values(server, "t") == list(range(PRODUCERS + 2))
    server.stop()
