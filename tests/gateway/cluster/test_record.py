"""Records of partitions: their JSON, and what is refused.

Covers gateway.cluster.record.
"""

from __future__ import annotations

from dataclasses import replace

import orjson
import pytest

from gateway.cluster.record import PartitionRecord, PartitionState, SegmentRecord, check, decode, encode

SEALED = SegmentRecord(start=0, broker="n1", queue=(16, 0), physical=0, end=101, epoch=3, from_ms=1, to_ms=9)
OPEN = SegmentRecord(start=101, broker="kafka1", queue=("orders", 2), physical=58, epoch=17, from_ms=9)
RECORD = PartitionRecord(epoch=17, owner="n2", verified=58, segments=(SEALED, OPEN))


def test_the_json_is_the_documented_one() -> None:
    assert orjson.loads(encode(RECORD)) == {
        "v": 1, "epoch": 17, "owner": "n2", "state": "normal", "to": None, "verified": 58,
        "segments": [
            {"start": 0, "broker": "n1", "queue": [16, 0], "physical": 0, "end": 101, "epoch": 3, "from_ms": 1,
             "to_ms": 9},
            {"start": 101, "broker": "kafka1", "queue": ["orders", 2], "physical": 58, "end": None, "epoch": 17,
             "from_ms": 9},
        ],
    }  # fmt: skip
    assert decode(encode(RECORD)) == RECORD
    moving = replace(RECORD, epoch=18, state=PartitionState.SEALING, to="n3")
    assert decode(encode(moving)) == moving


BROKEN = {
    "an end in the last segment": replace(RECORD, segments=(SEALED,)),
    "no end in another": replace(RECORD, segments=(replace(SEALED, end=None), OPEN)),
    "a gap": replace(RECORD, segments=(SEALED, replace(OPEN, start=102))),
    "an end before the beginning": replace(RECORD, segments=(replace(SEALED, physical=102), OPEN)),
    "epochs that do not rise": replace(RECORD, segments=(replace(SEALED, epoch=17), OPEN)),
    "an owner of another epoch": replace(RECORD, epoch=18),
    "an epoch above the record's": replace(RECORD, epoch=16, state=PartitionState.SEALING),
}


@pytest.mark.parametrize("record", BROKEN.values(), ids=BROKEN)
def test_a_record_that_breaks_an_invariant_is_refused(record: PartitionRecord) -> None:
    with pytest.raises(ValueError, match=r"R[123]"):
        check(record)
    with pytest.raises(ValueError, match="not understood"):
        decode(encode(record))


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"state": "gone"}, {"later": 1}, {"segments": []}, {"segments": [{}]}, {"segments": None}],
    ids=str,
)
def test_what_is_not_understood_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not understood"):
        decode(orjson.dumps({**orjson.loads(encode(RECORD)), **change}))
    for data in (b"", b"[]", b"null", b"{}"):
        with pytest.raises(ValueError, match="not understood"):
            decode(data)
