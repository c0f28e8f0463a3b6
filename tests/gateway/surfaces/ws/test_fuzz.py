"""Frames that no client should send: each is answered, refused by name, or closes with a code of the table."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.surfaces.ws.commands import PERMISSIONS
from gateway.surfaces.ws.outbox import Closing
from gateway.surfaces.ws.protocol import CloseCode, binary_frame
from tests.gateway.surfaces.ws.talk import Talk, subscribe, talking
from tests.waiting import PATIENCE_S

ALLOWED = {CloseCode.BAD_FRAME, CloseCode.LIMIT, CloseCode.UNSUPPORTED}

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(
        ["orders", "s", "g", "earliest", "latest", "stream", "queue", "binary", "batch", "orders:0=1", "r1", "tag:a"]
    ),
)
value = st.recursive(
    plain,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.one_of(st.text(max_size=6), st.sampled_from(["orders", "0", "timestamp"])), inner, max_size=4
        ),
    ),
    max_leaves=8,
)
FIELDS = (
    "topic", "topics", "records", "partition", "format", "acks", "ack", "sub", "pattern", "mode", "group", "member",
    "from", "start", "epochs", "filter", "credit", "credit_bytes", "auto_credit", "auto_ack", "invisible_ms", "batch",
    "receipts", "up_to", "cursor", "delay_ms", "reason", "partitions", "to", "messages", "bytes", "subs", "seen",
    "resume", "token", "client", "binary",
)  # fmt: skip
command = st.builds(
    lambda op, fields: {"op": op, **fields},
    st.sampled_from(sorted(PERMISSIONS)),
    st.dictionaries(st.sampled_from(FIELDS), value, max_size=5),
)
record = st.dictionaries(
    st.sampled_from(["key_len", "value_len", "tag", "partition", "key", "delay_ms"]), value, max_size=3
)
text_frame = st.one_of(
    st.text(max_size=60),
    st.lists(command, max_size=4).map(lambda commands: orjson.dumps(commands).decode()),
    st.lists(command, min_size=1, max_size=4).map(lambda many: "\n".join(orjson.dumps(one).decode() for one in many)),
    st.builds(
        lambda one, at, noise: orjson.dumps(one).decode()[:at] + noise, command, st.integers(0, 80), st.text(max_size=4)
    ),
)
data_frame = st.one_of(
    st.binary(max_size=60),
    st.builds(lambda length, rest: struct.pack(">I", length) + rest, st.integers(0, 2**32 - 1), st.binary(max_size=40)),
    st.builds(
        lambda records, fields, payload: binary_frame(
            orjson.dumps({"id": 1, "op": "produce", "topic": "orders", "records": records, **fields}), payload
        ),
        st.lists(record, max_size=3),
        st.dictionaries(st.sampled_from(["format", "partition", "acks", "op"]), plain, max_size=2),
        st.binary(max_size=30),
    ),
)


@settings(max_examples=80, deadline=None)
@given(st.booleans(), st.lists(st.one_of(text_frame, data_frame), max_size=6))
def test_no_frames_do_worse_than_a_refusal_or_a_documented_close(binary: bool, frames: list[str | bytes]) -> None:
    asyncio.run(asyncio.wait_for(_run(binary, frames), PATIENCE_S))


async def _run(binary: bool, frames: list[str | bytes]) -> None:
    async with talking({"orders": 2}) as talk:
        await talk.answer({"id": 0, "op": "hello", "binary": binary})
        await talk.fill("orders", 5)
        await talk.answer(subscribe("s") | {"id": 1})
        await talk.answer(subscribe("g", mode="queue", group="g") | {"id": 2})
        code = None
        for frame in frames:
            code = await _taken(talk, frame)
            if code is not None:
                break
        assert code is None or code in ALLOWED, code
        assert talk.closed_with is None, "no fault of ours"
        if code is None:  # the conversation goes on
            await talk.conversation.in_flight.settled()
            assert (await talk.answer({"id": 777, "op": "ping"}))["op"] == "pong"
        talk.says_goodbye = True


async def _taken(talk: Talk, frame: Any) -> CloseCode | None:
    try:
        if isinstance(frame, str):
            await talk.conversation.take(frame)
        else:
            await talk.conversation.take_binary(frame)
    except Closing as closing:
        return closing.code
    return None


async def test_a_frame_of_empty_lines_is_not_split() -> None:
    """Sixteen million lines would be as many strings."""
    async with talking({"orders": 1}) as talk:
        assert await _taken(talk, "\n" * 10_000 + "x") is CloseCode.BAD_FRAME
        assert await _taken(talk, "\n" * 10_001 + "x") is CloseCode.LIMIT
