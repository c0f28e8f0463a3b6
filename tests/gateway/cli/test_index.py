"""gateway/cli/index.py: `mq index rebuild`, there and back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from typer.testing import CliRunner, Result

from gateway.cli import index
from gateway.cli.terminal import CliError
from store.config import StoreConfig
from store.errors import IndexRefused
from store.record_batch import Record, encode
from store.store import Store
from store.types import Append, Bounds, QueueKey


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(index.app, [str(argument) for argument in arguments])


@pytest.fixture
def config(tmp_path: Path) -> StoreConfig:
    """A closed store with three records in one partition, indexed in files."""
    config = StoreConfig(root=tmp_path / "data", extent_bytes=1 << 16, disk_floor_bytes=0)

    async def fill() -> None:
        store = await Store.open(config)
        topic, _ = await store.create_topic("orders", 1)
        batch = encode([Record(None, b"%d" % number, 0) for number in range(3)])
        await store.append([Append(queue=QueueKey(topic.topic_id, 0), batch=batch, record_count=3)])
        await store.close()

    asyncio.run(fill())
    return config


async def bounds(config: StoreConfig) -> Bounds:
    store = await Store.open(config)
    try:
        return store.bounds(QueueKey(store.topic("orders").topic_id, 0))
    finally:
        await store.close()


def with_index(config: StoreConfig, kind: str) -> StoreConfig:
    return StoreConfig(root=config.root, extent_bytes=1 << 16, disk_floor_bytes=0, index=kind)  # type: ignore[arg-type]


def test_there_and_back(config: StoreConfig) -> None:
    rocksdb = with_index(config, "rocksdb")
    with pytest.raises(IndexRefused, match="mq index rebuild"):
        asyncio.run(bounds(rocksdb))
    result = run("rebuild", "--data", config.root, "--to", "rocksdb", "--json")
    assert (result.exit_code, orjson.loads(result.stdout)["record_count"]) == (0, 4)  # the topic's creation is one
    assert asyncio.run(bounds(rocksdb)) == Bounds(0, 3)
    result = run("rebuild", "--data", config.root, "--to", "file")
    assert (result.exit_code, 'index = "file"' in result.stdout) == (0, True)
    assert asyncio.run(bounds(config)) == Bounds(0, 3)


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    result = run("rebuild", "--data", tmp_path, "--to", "file")
    assert isinstance(result.exception, CliError)
    assert "no commitlog" in str(result.exception)
