"""Which slot a schedule goes into, when it rolls, and the schedule id. Pure.

A slot is one second of wall time, named by its epoch second: slot 1_700_000_000 holds what is due from
1_700_000_000_000 ms to 1_700_000_000_999 ms. The slot is coarse, delivery is not: the due millisecond is in the
timer-log unit.

Rolling. A due time at or past the roll window waits in an intermediate slot first; there the record is copied to the
head of the log (so that its body stays younger than the log's retention) and placed again. With w the write mark and
W the window: it rolls when due - w >= W, to w + W/2 when what remains after a full window is less than W/3 (so that
the last hop is not tiny), else to w + W. Example with W = 48 h: due in 50 h waits at +24 h, then 26 h more; due in
71 h waits at +48 h, then 23 h.

Schedule id: "s" and 27 characters of base64url (RFC 4648, no padding) over 20 bytes, big-endian:

    0         8          16      20
    +---------+----------+-------+
    | due ms  | position | index |     the entry that first accepted the record, and the record's index in it
    | i64     | i64      | i32   |
    +---------+----------+-------+

It is self-describing: the due slot and the body are found without an index. There is one id for one schedule: an id
that is not exactly what `encode_schedule_id` writes is refused.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable
from typing import NamedTuple

SLOT_MS = 1000
"""One tick of the wheel."""

LAP_SLOTS = 604_800
"""Slots of one lap: seven days."""

BLANK_SLOTS = 60
"""Slots kept free between the furthest write and the end of a lap."""

ROLL_WINDOW_MS_MIN = 2 * SLOT_MS
ROLL_WINDOW_MS_MAX = (LAP_SLOTS - BLANK_SLOTS) * SLOT_MS

_ID = struct.Struct(">qqi")
assert _ID.size == 20
pack_schedule_id = _ID.pack
"""due ms, position, index -> the 20 bytes of an id"""
_PREFIX = "s"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
SCHEDULE_ID_BYTES = len(_PREFIX) + 27
"""Of an id in ASCII."""


class ScheduleId(NamedTuple):
    """One schedule: when it is due, and the entry and record index that accepted it."""

    due_ms: int
    position: int
    record_index: int

    @property
    def text(self) -> str:
        """The id as clients know it."""
        return encode_schedule_id(*self)


class Placement(NamedTuple):
    """Where a schedule waits: the slot's epoch second, and whether it rolls there instead of firing."""

    slot_s: int
    rolls: bool


def encode_schedule_id(due_ms: int, position: int, record_index: int) -> str:
    """The id of the schedule accepted as record `record_index` of the entry at `position` of the log."""
    return spell_schedule_id(due_ms, position, record_index).decode("ascii")


def spell_schedule_id(due_ms: int, position: int, record_index: int) -> bytes:
    """`encode_schedule_id`, in ASCII bytes."""
    packed = pack_schedule_id(due_ms, position, record_index)
    return b"s" + binascii.b2a_base64(packed, newline=False)[:-1].translate(_URL_SAFE)


def encode_schedule_ids(dues_ms: Iterable[int], position: int) -> list[str]:
    """`encode_schedule_id` of the records of one entry from index 0 on."""
    ids = spell_schedule_ids(pack_schedule_id(due_ms, position, index) for index, due_ms in enumerate(dues_ms))
    return list(map(bytes.decode, ids))


def spell_schedule_ids(packed: Iterable[bytes]) -> list[bytes]:
    """`spell_schedule_id` of schedules that are given as the 20 bytes each, in a third of the time: a byte behind each
    makes it a whole number of base64's groups of three, so that all are encoded at once."""
    text = binascii.b2a_base64(b"".join([one + b"\0" for one in packed]), newline=False).translate(_URL_SAFE)
    return [b"s" + text[at : at + SCHEDULE_ID_BYTES - 1] for at in range(0, len(text), SCHEDULE_ID_BYTES)]


def decode_schedule_id(text: str) -> ScheduleId:
    """Read an id back. Raises ValueError when `encode_schedule_id` cannot have written it."""
    if len(text) == SCHEDULE_ID_BYTES and text.startswith(_PREFIX) and text.isascii():
        try:
            schedule = ScheduleId._make(_ID.unpack(base64.b64decode(text[1:] + "=", altchars=b"-_", validate=True)))
        except (binascii.Error, struct.error):
            pass
        else:
            # Also refuses the other spellings base64 allows for the two bits left over in the last character.
            if min(schedule) >= 0 and encode_schedule_id(*schedule) == text:
                return schedule
    raise ValueError("not a schedule id")


def slot_for(due_ms: int, write_mark_ms: int, roll_window_ms: int) -> Placement:
    """The slot for a record due at `due_ms`, seen from a write mark; all are epoch ms. It may be in the past."""
    ahead_ms = due_ms - write_mark_ms
    if ahead_ms < roll_window_ms:
        return Placement(due_ms // SLOT_MS, rolls=False)
    if (ahead_ms - roll_window_ms) * 3 < roll_window_ms:
        return Placement((write_mark_ms + roll_window_ms // 2) // SLOT_MS, rolls=True)
    return Placement((write_mark_ms + roll_window_ms) // SLOT_MS, rolls=True)
