"""Find the end of the log after a stop of any kind, and make it a clean one.

From the checkpoint on, entries are read and checked one by one. The first bytes that are not an entry are

    nothing     zeros to the end of the prepared space: the log ends here
    a torn tail bytes of a write that was never acknowledged as durable: cut and zeroed
    rot         bytes that had been durable: refused, because cutting them would lose acknowledged records

Rot is recognised by the entries behind it: one that carries a durable position (store/log/entry.py) beyond the damage
says that the damaged bytes had been synced when it was written. A valid entry behind the damage that does not say so
belongs to the same unsynced writes, of which a power cut may keep any sectors; it goes with the torn tail. (What lies
before the checkpoint is not read here. It is checked whenever it is served, and by `mq verify`.)

The same durable position says how much of the log needs to be written again before it may be shown: what lies behind
the last one that was read. Before it, a successful fdatasync has been.

Recovery is idempotent: it moves no checkpoint, and writes nothing but bytes that are already there and zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import eq

from store.errors import Corrupt
from store.limits import ENTRY_BYTES_MAX, MiB
from store.log.commit_log import CommitLog, Group
from store.log.entry import ALIGNMENT, HEADER_BYTES, Damage, Header, decode_entry, durable_position_of
from store.types import Entry

_OWN_POSITION_AT = 16


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What recovery did, for the log and for `mq` users."""

    from_position: int
    end_position: int
    entry_count: int
    cut_bytes: int  # of a torn tail
    cut_reason: str | None


Progress = Callable[[int, int], None]
"""Told how many bytes of the log have been scanned, and how many there are at most."""

PROGRESS_BYTES = 16 * MiB


def recover(
    log: CommitLog,
    checkpoint: int,
    replay: Callable[[Sequence[Header | Entry]], None],
    *,
    durable_position: int = 0,
    progress: Progress | None = None,
) -> RecoveryReport:
    """Scan the opened log from the checkpoint (a position), call `replay` for all entries, cut a torn tail.

    `replay` gets them in the log's order, many at a time; of those without an extension, the header. When this function
    returns, every byte of the log is durable. `replay` is called before that, but nothing may be shown to anyone
    before it returns. Raises Corrupt on rot, naming file and position.
    """
    begin = max(checkpoint, log.first_position)
    if begin > log.prepared_position:
        raise Corrupt(log.path_of(begin), begin, "the checkpoint points behind the log: a log file is missing or cut")
    end = begin
    entry_count = 0
    damage: Damage | None = None
    told = begin
    for found in log.scan_groups(begin):
        if isinstance(found, Damage):
            damage = found
            break
        if isinstance(found, Group):
            end = found.end
            durable_position = max(durable_position, found.durable_position)
            entry_count += len(found.entries)
            replay(found.entries)
        else:
            end = found.position + found.size
        if progress is not None and end - told >= PROGRESS_BYTES:
            told = end
            progress(end - begin, log.prepared_position - begin)
    torn = [(position, size) for position, size in log.nonzero_chunks(end)]
    if damage is not None:
        for position, size in torn:
            _refuse_rot(log, damage, position, size)
    log.accept_tail(min(max(begin, durable_position), end), end)
    cut_bytes = sum(size for _, size in torn)
    return RecoveryReport(begin, end, entry_count, cut_bytes, damage.reason if damage and cut_bytes else None)


def _refuse_rot(log: CommitLog, damage: Damage, position: int, size: int) -> None:
    """Raise Corrupt if a valid entry beginning in this chunk says that the damaged bytes had been durable."""
    view = memoryview(log.read_bytes(position, size + ENTRY_BYTES_MAX))
    skew = -position % ALIGNMENT
    last = min(size, len(view) - HEADER_BYTES)
    words_end = min(len(view), size + _OWN_POSITION_AT)
    count = max(0, (words_end - skew) // ALIGNMENT)
    words = struct.unpack_from(f">{count}q", view, skew)
    # Entries are looked for at every multiple of the alignment: compared in one go, for a tail may be long.
    first = position + skew - _OWN_POSITION_AT
    expected = range(first, first + count * ALIGNMENT, ALIGNMENT)
    for word in compress(expected, map(eq, words, expected)):
        at = word - position
        if not 0 <= at < last or word <= damage.position:
            continue
        found = decode_entry(view, at, word)
        if isinstance(found, Damage):
            continue
        if durable_position_of(view, at) > damage.position:
            raise Corrupt(
                log.path_of(damage.position),
                damage.position,
                f"{damage.reason}, and a valid entry at {word} shows that these bytes had been durable",
            )
