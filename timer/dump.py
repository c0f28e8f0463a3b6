"""Print any file of the timer as plain dictionaries, one a unit or slot: for `mq dump` and for people.

Reads the file as it is and goes on to its end: damage is printed, not raised. The layouts are those of the modules
that own the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from crc32c import crc32c

from timer import checkpoint, pending_file, timer_log, wheel
from timer.key_index import is_key_file, rows_of_file

_MAGIC_NAMES = {
    timer_log.MAGIC_DEFAULT: "default",
    timer_log.MAGIC_ROLL: "roll",
    timer_log.MAGIC_DELETE: "delete",
}
_READ_UNITS = 4096


def dump(path: Path) -> Iterator[dict[str, object]]:
    """The contents of a timer log, wheel, pending, keys or timer checkpoint file; slots never used are left out.

    Raises ValueError when the path is not one of the timer's files.
    """
    path = path.resolve()
    if path.name.isdecimal() and path.parent.name == "timerlog":
        return _dump_timer_log(path)
    if path.name == "wheel":
        return _dump_wheel(path)
    if path.name == "checkpoint" and _is_timer_checkpoint(path):
        return _dump_checkpoint(path)
    if path.name == "pending" and _is_pending(path):
        return _dump_pending(path)
    if path.name == "keys" and is_key_file(path):
        return rows_of_file(path)
    raise ValueError(f"{path} is not a timer log, wheel, pending, keys or checkpoint file of a timer")


def _dump_timer_log(path: Path) -> Iterator[dict[str, object]]:
    position = int(path.name)
    unit_bytes = timer_log.UNIT_BYTES
    facts_bytes = timer_log._FACTS.size
    with path.open("rb") as file:
        while chunk := file.read(unit_bytes * _READ_UNITS):
            for at in range(0, len(chunk) - unit_bytes + 1, unit_bytes):
                size, *fields, crc = timer_log._UNIT.unpack_from(chunk, at)
                if size != unit_bytes or crc != crc32c(chunk[at : at + facts_bytes], position & timer_log._SEED_MASK):
                    yield {"position": position, "damage": "a unit fails its check"}
                else:
                    unit = timer_log.Unit(*fields)._asdict()
                    yield {"position": position, **unit, "magic": _MAGIC_NAMES.get(unit["magic"], unit["magic"])}
                position += unit_bytes
            if rest := len(chunk) % unit_bytes:
                yield {"position": position, "damage": f"{rest} bytes are no whole unit"}


def _dump_wheel(path: Path) -> Iterator[dict[str, object]]:
    index = 0
    with path.open("rb") as file:
        while page := file.read(wheel.PAGE_BYTES):
            if page.count(0) != len(page):
                for at in range(0, len(page) - wheel.SLOT_BYTES + 1, wheel.SLOT_BYTES):
                    time_s, first, last, count, magic = wheel._SLOT.unpack_from(page, at)
                    slot = index + at // wheel.SLOT_BYTES
                    facts = page[at : at + wheel._FACTS.size]
                    if magic == crc32c(facts) ^ wheel._MAGIC:
                        yield {"index": slot, "time_s": time_s, "first": first, "last": last, "count": count}
                    elif any(page[at : at + wheel.SLOT_BYTES]):
                        yield {"index": slot, "damage": "a slot fails its check"}
            index += wheel.PAGE_BYTES // wheel.SLOT_BYTES


def _is_timer_checkpoint(path: Path) -> bool:
    content = path.read_bytes()
    magic = checkpoint._MAGIC.to_bytes(4, "big")
    return magic in (content[:4], content[checkpoint._SLOT_SPACING_BYTES :][:4])


def _is_pending(path: Path) -> bool:
    return path.read_bytes()[:4] == pending_file.MAGIC.to_bytes(4, "big")


def _dump_pending(path: Path) -> Iterator[dict[str, object]]:
    """Which checkpoint it belongs to and whether it passes its check; then, if so, a line for each topic."""
    parsed = pending_file.parse(path.read_bytes())
    if parsed is None:
        yield {"valid": False}
        return
    version, log_end, queue_offset, counts = parsed
    yield {"valid": counts is not None, "version": version, "log_end": log_end, "queue_offset": queue_offset}
    if counts is not None:
        for topic_id, schedule_count in counts.by_topic.items():
            yield {"topic_id": topic_id, "schedules": schedule_count}


def _dump_checkpoint(path: Path) -> Iterator[dict[str, object]]:
    content = path.read_bytes()
    for number in (0, 1):
        slot = content[number * checkpoint._SLOT_SPACING_BYTES :][: checkpoint._SLOT.size + checkpoint._CRC.size]
        facts = slot[: checkpoint._SLOT.size]
        if len(slot) < checkpoint._SLOT.size + checkpoint._CRC.size or slot[len(facts) :] != checkpoint._CRC.pack(
            crc32c(facts)
        ):
            yield {"slot": number, "valid": False}
            continue
        _, version, flags, generation, *marks = checkpoint._SLOT.unpack(facts)
        state = checkpoint.Checkpoint._make([*marks, bool(flags & checkpoint._CLEAN), bool(flags & checkpoint._KEYED)])
        yield {"slot": number, "valid": True, "version": version, "generation": generation, **state._asdict()}
