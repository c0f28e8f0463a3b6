"""`mq dump`: every file of a store as plain dictionaries, damage included."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import orjson
import pytest

from store.files import OsFiles
from store.index.opening import Rebuild, save_rebuild
from store.offline.dump import dump
from store.record_batch import Record, encode
from store.types import Append, Identity, ProducerSequence, QueueKey, RequestPart
from tests.store.offline_kit import entries_of, make_store, open_at, overwrite


async def test_every_file_of_a_store_can_be_dumped(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root)
    kinds = set()
    for path in root.rglob("*"):
        if path.is_file() and path.name != "lock":
            rows = list(dump(path))
            assert rows
            assert all(orjson.loads(orjson.dumps(row)) == row for row in rows), "a row is not plain JSON"
            assert not any("damage" in row for row in rows)
            kinds.add(path.relative_to(root).parts[0])
    assert kinds >= {"commitlog", "consumequeue", "format", "meta.1"}
    assert kinds & {"index.0", "index.1"}


async def test_the_log_is_dumped_entry_by_entry_with_values_on_demand(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root, batch_count=5)
    [file] = (root / "commitlog").iterdir()
    entries = entries_of(root)
    rows = [row for row in dump(file, values=True) if "topic" in row]
    assert [(row["position"], row["base_offset"], row["records"]) for row in rows] == [
        (entry.position, entry.base_offset, entry.record_count) for entry in entries
    ]
    values = rows[1]["values"]
    assert isinstance(values, list)
    assert values[0]["value"].startswith("0.0;")
    assert "values" not in next(iter(dump(file)))
    *_, last = dump(file)
    assert last["unused"] is True


async def test_damage_is_printed_and_the_rest_too(tmp_path: Path) -> None:
    root = tmp_path / "data"
    await make_store(root, batch_count=5)
    [file] = (root / "commitlog").iterdir()
    victim = entries_of(root)[2]
    overwrite(root, victim.position + 62, b"\xff\xff")
    rows = list(dump(file))
    [damage] = [row for row in rows if "damage" in row]
    assert damage["position"] == victim.position
    assert sum("topic" in row for row in rows) == 5
    snapshot = next(root.glob("index.?"))
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    assert list(dump(snapshot)) == [{"valid": False}]


async def test_bounds_and_units_are_those_of_the_queues(tmp_path: Path) -> None:
    root = tmp_path / "data"
    queues = await make_store(root, batch_count=9)
    entries = [entry for entry in entries_of(root) if entry.queue == queues[0]]
    path = root / "consumequeue" / str(queues[0].topic_id) / "0" / f"{0:020}"
    rows = list(dump(path))
    assert [row["offset"] for row in rows] == list(range(entries[-1].next_offset))
    assert {row["position"] for row in rows} == {entry.position for entry in entries}
    newest = max((next(iter(dump(path))) for path in root.glob("index.?")), key=lambda row: str(row["generation"]))
    counted = newest["queues"]
    assert isinstance(counted, list)
    bounds = {"topic_id": queues[0].topic_id, "queue_id": 0, "min_offset": 0, "max_offset": len(rows)}
    assert {**bounds, "kept_entries": []} in counted


async def test_units_that_the_snapshot_keeps_are_dumped_with_it(tmp_path: Path) -> None:
    root = tmp_path / "data"
    queues = await make_store(root, kept_from=60)
    newest = max((next(iter(dump(path))) for path in root.glob("index.?")), key=lambda row: str(row["generation"]))
    counted = newest["queues"]
    assert isinstance(counted, list)
    for queue in queues:
        entries = [entry for entry in entries_of(root) if entry.queue == queue][20:]
        [kept] = [one["kept_entries"] for one in counted if (one["topic_id"], one["queue_id"]) == queue]
        assert kept == [
            {
                "base_offset": entry.base_offset,
                "next_offset": entry.next_offset,
                "position": entry.position,
                "size": entry.size,
                "tag_hashes": [],
            }
            for entry in entries
        ]


async def test_ids_sequences_and_an_unfinished_rebuild_are_dumped(tmp_path: Path) -> None:
    store = await open_at(tmp_path)
    topic, _ = await store.create_topic("orders", 1)
    queue = QueueKey(topic.topic_id, 0)
    for number, identity in enumerate(
        [
            Identity(message_ids=[b"i" * 16]),
            Identity(request=RequestPart(b"r" * 16, b"12345678", (0,))),
            Identity(producer=ProducerSequence(b"p" * 16, 5)),
        ]
    ):
        batch = encode([Record(None, b"%d" % number, 0)])
        await store.append([Append(queue=queue, batch=batch, record_count=1, identity=identity)])
    await store.close()
    save_rebuild(tmp_path, OsFiles(), Rebuild("rocksdb", 800, {queue: 3}))
    [journal] = (tmp_path / "dedup").iterdir()
    assert [(row["rows"], row["message_ids"], row["request_ids"]) for row in dump(journal)] == [(2, 1, 1)]
    [producers] = dump(tmp_path / "producers.1")
    [known] = cast("list[dict[str, Any]]", producers["producers"])
    assert (known["producer_id"], known["topic_id"], known["sent"][0]["sequence"]) == ("70" * 16, 16, 5)
    [rebuild] = dump(tmp_path / "index-rebuild.1")
    assert (rebuild["target"], rebuild["next_offset"]) == ("rocksdb", 800)
    assert rebuild["queues"] == [{"topic_id": 16, "queue_id": 0, "max_offset": 3}]
    content = bytearray(journal.read_bytes())
    content[-1] ^= 1
    journal.write_bytes(content)
    assert "damage" in list(dump(journal))[-1]


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="not a commit log"):
        dump(tmp_path / "notes.txt")
