"""What a timer saves, and another one of the same log goes on from.

Covers timer.saved, TimerService.save and the recovery from it.
"""

from __future__ import annotations

import pytest

from store.errors import FormatTooNew
from store.types import Acks, Source
from tests.clock import START_MS, FakeClock
from tests.simdisk import SimDisk
from tests.timer.fakes import FakeKeyIndex, FakeLog, keyed_append, make_timer, settle
from timer.changes import Standing
from timer.errors import ScheduleKeyTaken
from timer.ports import KeyRow, TopicKey
from timer.saved import Saved, decode_saved, packed_unit
from timer.schedule import ScheduleId
from timer.timer_log import Unit

SAVED = Saved(
    812, 1_700_000_000, 4711,
    packed_unit(Unit(-1, 1, 1_700_000_000_123, 64, 200, 3, 16, 1_700_000_000)),
    [(TopicKey(16, b"k\xc3\xa9y"), KeyRow(Source(64, 3), 1_700_000_000))],
)  # fmt: skip


def test_what_is_saved_is_read_back() -> None:
    content = SAVED.encoded()
    assert decode_saved(content) == SAVED
    assert list(SAVED.units()) == [(1, 1_700_000_000_123, 64, 200, 3, 16, 1_700_000_000)]
    assert content[:8].hex() == "6d71747300010000"


def test_other_bytes_are_refused() -> None:
    content = SAVED.encoded()
    for length in range(len(content)):
        with pytest.raises(ValueError, match="saved"):
            decode_saved(content[:length])
    with pytest.raises(ValueError, match="bytes, not"):
        decode_saved(content + b"\0")
    with pytest.raises(ValueError, match="not ours"):
        decode_saved(b"x" + content[1:])
    with pytest.raises(FormatTooNew):
        decode_saved(content[:5] + b"\2" + content[6:])


async def test_another_timer_goes_on_with_what_waits_and_the_changes_since() -> None:
    clock, log = FakeClock(), FakeLog(FakeClock())
    first = make_timer(log, SimDisk(), clock, key_index=FakeKeyIndex())
    await first.start()
    accepted = await log.accept([(START_MS + 100, b"over"), (START_MS + 5000, b"waits"), (START_MS + 6000, b"gone")])
    keyed = keyed_append([(START_MS + 7000, b"keyed", b"mine")])
    await first.schedule(keyed, acks=Acks.FLUSHED, keys=[b"mine"])
    await settle(first)
    clock.step(2000)
    await settle(first)
    await settle(first)
    content = (await first.save()).encoded()
    assert len(list(decode_saved(content).units())) == 3
    gone = ScheduleId(START_MS + 6000, accepted.position, 2)
    assert (await first.cancel(gone)).standing is Standing.PENDING
    await log.accept([(START_MS + 8000, b"later")])

    second = make_timer(log, SimDisk(), clock, key_index=FakeKeyIndex())
    await second.start(decode_saved(content))
    assert second.recovery_outcome == "saved"
    await settle(second)
    assert second.pending_count == 3
    with pytest.raises(ScheduleKeyTaken):
        await second.schedule(keyed, acks=Acks.FLUSHED, keys=[b"mine"])
    clock.step(10_000)
    await settle(second)
    values = [bytes(one.value) for one in log.delivered()]
    assert sorted(values) == [b"keyed", b"later", b"over", b"waits"]
