"""Print any file of the store as plain dictionaries, one a record of the file: for `mq dump` and for people.

Reads the file as it is, checks what can be checked, and goes on to the end: damage is printed, not raised. Files of
the timer are printed by timer/dump.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson

from store.dedup.journal import DIRECTORY as DEDUP_DIRECTORY
from store.dedup.journal import JournalDamaged, decode_blocks
from store.dedup.producers import decode_table
from store.index.base import UNIT, UNIT_BYTES
from store.index.counted import Counted, decode_counted, is_unfinished
from store.index.opening import REBUILD_SNAPSHOT, decode_rebuild
from store.log.entry import Blank
from store.offline.directory import Found, Hole, LogFile, Stain, pieces
from store.record_batch import decode
from store.snapshot import decode_snapshot
from store.types import NO_ID, Identity

INDEX_SNAPSHOTS = ("index.0", "index.1")
TOPIC_SNAPSHOTS = ("meta.0", "meta.1")
PRODUCER_SNAPSHOTS = ("producers.0", "producers.1")
REBUILD_SNAPSHOTS = (f"{REBUILD_SNAPSHOT}.0", f"{REBUILD_SNAPSHOT}.1")
_SNAPSHOTS = (*INDEX_SNAPSHOTS, *TOPIC_SNAPSHOTS, *PRODUCER_SNAPSHOTS, *REBUILD_SNAPSHOTS)


def dump(path: Path, *, values: bool = False) -> Iterator[dict[str, object]]:
    """The contents of one file of a store. `values` adds the records of each entry of the log.

    Raises ValueError when the path is not one of the store's files, OSError when it cannot be read.
    """
    kinds = {part.name for part in path.resolve().parents}
    if path.name in _SNAPSHOTS:
        return _dump_snapshot(path)
    if path.name.isdigit() and path.resolve().parent.name == DEDUP_DIRECTORY:
        return _dump_dedup(path)
    if path.name == "format":
        return iter([{"format": path.read_text("utf-8", "backslashreplace").strip()}])
    if path.name.isdigit() and path.resolve().parent.name == "commitlog":
        return _dump_commit_log(path, values)
    if path.name.isdigit() and "consumequeue" in kinds:
        return _dump_consume_queue(path)
    raise ValueError(f"{path} is not a commit log, consume queue, snapshot or format file of a store")


def _dump_commit_log(path: Path, values: bool) -> Iterator[dict[str, object]]:
    for piece in pieces(LogFile(path, int(path.name), path.stat().st_size)):
        if isinstance(piece, Found):
            yield _fields_of(piece, values)
        elif isinstance(piece, Blank):
            yield {"position": piece.position, "size": piece.size, "blank": True}
        elif isinstance(piece, Hole | Stain):
            yield {"position": piece.position, "size": piece.size, "damage": piece.reason}
        else:
            yield {"position": piece.position, "size": piece.size, "unused": True}


def _fields_of(found: Found, values: bool) -> dict[str, object]:
    entry = found.entry
    fields: dict[str, object] = {
        "position": entry.position,
        "size": entry.size,
        "durable_position": found.durable_position,
        "topic": entry.topic,
        "topic_id": entry.queue.topic_id,
        "queue": entry.queue.queue_id,
        "base_offset": entry.base_offset,
        "records": entry.record_count,
        "store_time_ms": entry.store_time_ms,
        "json_values": entry.json_values,
        "tag_hashes": list(entry.tag_hashes),
        "delays": [delay._asdict() for delay in entry.delays],
        "sources": [source._asdict() for source in entry.sources],
    }
    if entry.light is not None:
        rows = entry.light.rows()
        fields["light_queues"] = [[row.record_index, _text(row.name), row.offset] for row in rows]
    if entry.identity is not None:
        fields["identity"] = _identity(entry.identity)
    if values:
        fields["values"] = [
            {"offset": record.offset, "key": _text(record.key), "value": _text(record.value)}
            for record in decode(entry.batch)
        ]
    return fields


def _identity(identity: Identity) -> dict[str, object]:
    fields: dict[str, object] = {}
    if identity.message_ids:
        fields["message_ids"] = [None if one == NO_ID else one.hex() for one in identity.message_ids]
    if (request := identity.request) is not None:
        fields["request_id"] = request.request_id.hex()
        fields["fingerprint"] = request.fingerprint.hex()
        fields["places"] = list(request.request_indexes)
    if (producer := identity.producer) is not None:
        fields["producer_id"] = producer.producer_id.hex()
        fields["sequence"] = producer.sequence
    return fields


def _dump_dedup(path: Path) -> Iterator[dict[str, object]]:
    try:
        for columns in decode_blocks(path.read_bytes()):
            yield {
                "rows": len(columns.positions),
                "first_position": columns.positions[0],
                "last_position": columns.positions[-1],
                "first_ms": columns.times_ms[0],
                "last_ms": columns.times_ms[-1],
                "message_ids": len(columns.ids),
                "request_ids": len(columns.requests),
            }
    except JournalDamaged as damage:  # what follows what counts may be left from an unfinished save
        yield {"damage": str(damage)}


def _dump_consume_queue(path: Path) -> Iterator[dict[str, object]]:
    offset = int(path.name) // UNIT_BYTES
    with path.open("rb") as file:
        while chunk := file.read(UNIT_BYTES * 4096):
            for position, size, tag_hash in UNIT.iter_unpack(chunk[: len(chunk) // UNIT_BYTES * UNIT_BYTES]):
                yield {"offset": offset, "position": position, "size": size, "tag_hash": tag_hash}
                offset += 1


def _dump_snapshot(path: Path) -> Iterator[dict[str, object]]:
    decoded = decode_snapshot(path.read_bytes())
    if decoded is None:
        yield {"valid": False}
        return
    version, generation, snapshot = decoded
    yield {
        "valid": True,
        "version": version,
        "generation": generation,
        "next_offset": snapshot.next_offset,
        **_content(path, snapshot.content),
    }


def _content(path: Path, content: bytes) -> dict[str, object]:
    if path.name in INDEX_SNAPSHOTS:
        return {"unfinished": is_unfinished(content), "queues": list(map(_counted, decode_counted(content)))}
    if path.name in PRODUCER_SNAPSHOTS:
        return {
            "producers": [
                {"producer_id": producer_id.hex(), **queue._asdict(), "sent": [one._asdict() for one in sent]}
                for (producer_id, queue), sent in decode_table(content).items()
            ]
        }
    if path.name in REBUILD_SNAPSHOTS:
        rebuild = decode_rebuild(content)
        queues = [{**key._asdict(), "max_offset": offset} for key, offset in rebuild.max_offsets.items()]
        return {"target": rebuild.target, "queues": queues}
    return {"content": orjson.loads(content)}


def _counted(counted: Counted) -> dict[str, object]:
    bounds = counted.bounds
    entries = counted.kept.since(counted.files_end, bounds.max_offset) if counted.kept else ()
    kept = [{**one._asdict(), "tag_hashes": list(one.tag_hashes or ())} for one in entries]
    return {**counted.key._asdict(), **bounds._asdict(), "kept_entries": kept}


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
