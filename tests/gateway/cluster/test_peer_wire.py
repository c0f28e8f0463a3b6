"""Messages between nodes survive their encoding, every error of the store and the timer included.

Covers gateway.cluster.peer_wire.
"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from gateway.brokers.base import BrokerUnreachable
from gateway.cluster import peer_wire
from gateway.cluster.peer_auth import CODE_BYTES, FrameCodes
from gateway.cluster.peer_wire import Batches, Frame, Frames, frame
from store.errors import (
    AlreadyStored,
    BrokerRefuses,
    Corrupt,
    OffsetMoved,
    Overloaded,
    SealedQueue,
    SequenceGap,
    StoreError,
    TooManyIds,
    UnknownQueue,
)
from store.types import (
    Append,
    Buffer,
    Delay,
    Identity,
    Original,
    ProducerSequence,
    QueueKey,
    RecordNumbers,
    RequestPart,
    ScheduleKey,
    Source,
)
from timer.errors import ScheduleKeyTaken, TooManySchedules
from timer.schedule import ScheduleId

QUEUE = QueueKey(16, 3)
PLAIN = Append(queue=QUEUE, batch=b"batch", record_count=1)
FULL = Append(
    queue=QUEUE, batch=b"more", record_count=2, json_values=True, tag_hashes=[-(2**63), 7], delays=[Delay(5, 16, 3)],
    sources=[Source(1, 2)], expected_offset=9,
    identity=Identity(
        message_ids=[b"\x00" * 16], request=RequestPart(b"r" * 16, b"f" * 8, [0, 2]),
        producer=ProducerSequence(b"p" * 16, 4), numbers=RecordNumbers(b"n" * 16, 1, 2, 3),
    ),
)  # fmt: skip


def test_appends_survive_with_all_that_they_may_have() -> None:
    message = peer_wire.pack({"appends": list(map(peer_wire.append_head, (PLAIN, FULL)))}, [PLAIN.batch, FULL.batch])
    head, rest = peer_wire.unpack(b"".join(message))
    batches = Batches(rest)
    first, second = (peer_wire.append_of(append, batches) for append in head["appends"])
    second.batch = bytes(second.batch)
    assert asdict(second) == asdict(FULL)
    assert (first.queue, first.batch, first.record_count, first.identity) == (QUEUE, b"batch", 1, None)
    assert [*first.tag_hashes, *first.delays, *first.sources] == []
    assert not first.json_values
    with pytest.raises(ValueError, match="cut off"):
        batches.take(1)
    with pytest.raises(ValueError, match="cut off"):
        Batches(memoryview(b"abc")).take(-1)


@pytest.mark.parametrize("message", [b"", b"\0\0\0", b"\0\0\0\1", b"\0\0\0\2[]", b"\0\0\0\1{", b"\xff\xff\xff\xff{}"])
def test_a_message_that_is_not_understood_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError):
        peer_wire.unpack(message)


ERRORS = [
    UnknownQueue("no such queue"), SealedQueue("sealed"), SequenceGap("gap"), TooManySchedules("full"),
    OffsetMoved(3, 5), TooManyIds("many", 700), Corrupt("a/b", 7, "rot"), BrokerRefuses("no", 29),
    AlreadyStored([{0: Original(QUEUE, 5, 6, 7)}, {}, {1: Original(QUEUE, None, 1, 2, ScheduleKey(1, 2, 3))}]),
    ScheduleKeyTaken({0: ScheduleId(1, 2, 3), 4: None}),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive(error: StoreError) -> None:
    head, _ = peer_wire.unpack(b"".join(peer_wire.pack(peer_wire.error_head(error))))
    found = peer_wire.error_of(head)
    assert (type(found), str(found)) == (type(error), str(error))
    assert vars(found) == vars(error)


def test_errors_of_one_side_alone_arrive_as_the_nearest_that_both_know() -> None:
    assert type(peer_wire.error_of(peer_wire.error_head(BrokerUnreachable("gone")))) is Overloaded
    later = peer_wire.error_of({"error": "OfALaterVersion", "args": ["what it says"]})
    assert (type(later), str(later)) == (StoreError, "what it says")


def test_frames_are_found_however_they_arrive() -> None:
    sent = [Frame(0, "hello", b"x"), Frame(7, "", b""), Frame(2**32 - 1, "append", bytes(range(256)) * 40)]
    data = b"".join(b"".join(frame(number, name, (message[:2], message[2:]))) for number, name, message in sent)
    for piece in (1, 3, 1000, len(data)):
        frames = Frames(20_000)
        found = [one for at in range(0, len(data), piece) for one in frames.feed(data[at : at + piece])]
        assert found == sent


def test_a_frame_has_a_limit() -> None:
    whole = b"".join(frame(1, "read", (bytes(95),)))  # 4 + 1 + 4 + 95 behind its length
    assert Frames(104).feed(whole) == [Frame(1, "read", bytes(95))]
    for refused, bytes_max in ((whole, 103), (bytes(9), 104)):
        with pytest.raises(ValueError, match="a frame of"):
            Frames(bytes_max).feed(refused)


class _Kept(FrameCodes):
    """Keeps what it is shown, as the frame of a function does that another thread looks at."""

    def check(self, part: Buffer, given: bytes) -> None:
        self.part = part
        super().check(part, given)


def test_frames_are_taken_out_while_somebody_still_has_a_view_of_one() -> None:
    key = bytes(CODE_BYTES)
    codes = FrameCodes(key, "blake2b")
    sent = b"".join(b"".join(frame(number, "append", [b"x" * number], codes)) for number in (1, 2, 3))
    frames = Frames(1_000, _Kept(key, "blake2b"))
    found = [one for at in range(0, len(sent), 50) for one in frames.feed(sent[at : at + 50])]
    assert found == [Frame(number, "append", b"x" * number) for number in (1, 2, 3)]
