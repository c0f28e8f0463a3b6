"""Selectors of installed packages, from the entry point to the partition."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from gateway.api.producer import Producer
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from gateway.routing import selectors
from gateway.routing.select import PartitionSelector
from gateway.surfaces.http.context import Gateway
from store import record_batch
from store.record_batch import Record
from store.topics import TopicConfig
from store.types import Acks
from tests.clock import START_MS
from tests.gateway.fake_broker import FakeBroker

PACKAGE = """
class ByCountry:
    def select(self, record):
        self.last = record
        country = dict(record.headers).get("country", record.key or b"")
        if country == b"nowhere":
            return len(record.brokers)
        return {b"de": 1, b"fr": 2}.get(country, 3)
"""


@pytest.fixture
def by_country(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> selectors.CustomSelector:
    """An installed package."""
    package = tmp_path / "by_country-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: by-country\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{selectors.ENTRY_POINT_GROUP}]\nby_country = by_country:ByCountry\n")
    (tmp_path / "by_country.py").write_text(PACKAGE)
    monkeypatch.syspath_prepend(tmp_path)
    found = selectors.load(selectors.installed())
    assert list(found) == ["by_country"]
    return found["by_country"]


def record(key: bytes | None = None, country: bytes | None = None, partition: int | None = None) -> ProduceRecord:
    headers = [] if country is None else [("country", country)]
    return ProduceRecord(key, b"1", headers, None, partition, None, None, None)


async def test_each_record_goes_where_the_package_says(
    gateway: Gateway, broker: FakeBroker, by_country: selectors.CustomSelector
) -> None:
    producer = Producer(
        gateway.routes_table, PartitionSelector(), clock=gateway.clock, limits=gateway.limits, acks=Acks.FLUSHED,
        selectors={"by_country": by_country},
    )  # fmt: skip

    async def partitions(*records: ProduceRecord, selector: str | None = "by_country") -> list[int]:
        receipts = await producer.produce("orders", records, json_values=True, selector=selector)
        return [receipt.partition for receipt in receipts]

    assert await partitions(record(b"de"), record(b"x", b"fr"), record(), record(b"de", partition=0)) == [1, 2, 3, 0]
    assert await partitions(record(b"fr")) == [2]
    batch = bytes(record_batch.encode([Record(b"de", b"1", START_MS)]))
    (receipt,) = await producer.produce_batches("orders", batch, selector="by_country")
    assert receipt.partition == 3, "a raw batch is not opened"
    assert vars(by_country)["last"] == selectors.Selected("orders", None, (), ("local",) * 4)

    stored = broker.stored_count
    with pytest.raises(RuntimeError, match="chose partition 4 of 4"):
        await partitions(record(b"de"), record(b"nowhere"))
    with pytest.raises(RequestError, match=r"by_planet is none .* key, round_robin, random, room, by_country"):
        await partitions(record(b"de"), selector="by_planet")
    assert broker.stored_count == stored
    await broker.configure_topic("orders", {"selector": "by_country"})
    assert gateway.routes_table.topic("orders").config == TopicConfig(selector="by_country")
    assert await partitions(record(b"de"), record(b"fr"), selector=None) == [1, 2]
    with pytest.raises(RequestError, match="by_country is none"):
        await gateway.producer.produce("orders", [record(b"de")], json_values=True)


def test_no_package_takes_a_built_in_name() -> None:
    with pytest.raises(ValueError, match="built-in selector: random"):
        selectors.load([EntryPoint("random", "by_country:ByCountry", selectors.ENTRY_POINT_GROUP)])
