"""Print any file of the store as plain dictionaries, one a record of the file: for `mq dump` and for people.

Reads the file as it is, checks what can be checked, and goes on to the end: damage is printed, not raised.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from store.checkpoint import CONTENT_BYTES, SLOT_BYTES, decode_slot
from store.consume_queue.file import UNIT_BYTES
from store.entry import HEADER_BYTES, Blank, Damage, decode_entry, entry_length
from store.limits import ENTRY_BYTES_MAX
from store.record_batch import decode

_UNIT = struct.Struct(">qiq")


def dump(path: Path, *, values: bool = False) -> Iterator[dict[str, object]]:
    """The contents of a commit log, consume queue or checkpoint file. `values` adds the records of each entry.

    Raises ValueError when the path is not one of the store's files.
    """
    kinds = {part.name for part in path.resolve().parents}
    if path.name == "checkpoint":
        return _dump_checkpoint(path)
    if path.name.isdigit() and path.resolve().parent.name == "commitlog":
        return _dump_commit_log(path, values)
    if path.name.isdigit() and "consumequeue" in kinds:
        return _dump_consume_queue(path)
    raise ValueError(f"{path} is not a commit log, consume queue or checkpoint file of a store")


def _dump_commit_log(path: Path, values: bool) -> Iterator[dict[str, object]]:
    start = int(path.name)
    size = path.stat().st_size
    with path.open("rb") as file:
        at = 0
        while at < size:
            file.seek(at)
            header = file.read(HEADER_BYTES)
            length = min(entry_length(header), ENTRY_BYTES_MAX) if len(header) == HEADER_BYTES else 0
            view = memoryview(header + file.read(max(0, length - HEADER_BYTES)))
            found = decode_entry(view, 0, start + at)
            if isinstance(found, Damage):
                if not found.is_zero:
                    yield {"position": found.position, "damage": found.reason}
                return
            if isinstance(found, Blank):
                yield {"position": found.position, "size": found.size, "blank": True}
                return
            fields: dict[str, object] = {
                "position": found.position,
                "size": found.size,
                "topic": found.topic,
                "topic_id": found.queue.topic_id,
                "queue": found.queue.queue_id,
                "base_offset": found.base_offset,
                "records": found.record_count,
                "store_time_ms": found.store_time_ms,
                "json_values": found.json_values,
                "tag_hashes": list(found.tag_hashes),
                "delays": [delay._asdict() for delay in found.delays],
                "sources": [source._asdict() for source in found.sources],
            }
            if values:
                fields["values"] = [
                    {"offset": record.offset, "key": _text(record.key), "value": _text(record.value)}
                    for record in decode(found.batch)
                ]
            yield fields
            at += found.size


def _dump_consume_queue(path: Path) -> Iterator[dict[str, object]]:
    offset = int(path.name) // UNIT_BYTES
    with path.open("rb") as file:
        while chunk := file.read(UNIT_BYTES * 4096):
            for position, size, tag_hash in _UNIT.iter_unpack(chunk[: len(chunk) // UNIT_BYTES * UNIT_BYTES]):
                yield {"offset": offset, "position": position, "size": size, "tag_hash": tag_hash}
                offset += 1


def _dump_checkpoint(path: Path) -> Iterator[dict[str, object]]:
    content = path.read_bytes()
    for number in (0, 1):
        slot = decode_slot(content[number * SLOT_BYTES :][:CONTENT_BYTES])
        if slot is None:
            yield {"slot": number, "valid": False}
        else:
            yield {"slot": number, "valid": True, **slot._asdict()}


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "backslashreplace")
