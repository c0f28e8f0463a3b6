"""gateway/api/render.py: text that is filled in says what the objects say, whatever the records are."""

from __future__ import annotations

from typing import cast

import orjson
from hypothesis import given
from hypothesis import strategies as st

from gateway.api.render import delivered_as_json, delivered_as_list, settled_as_json, settled_as_list
from gateway.groups.protocol import LEASE_OVER, Delivered, Settled
from gateway.surfaces.ws.commands import Form, Subscribe
from gateway.surfaces.ws.queue import Queue

JSON = st.sampled_from([None, b"null", b'{"a":1}', b'"%d %b \\u0661"', b"[1,2]"])
TEXT = st.sampled_from([None, b"k", "ключ".encode(), b"\xff", b"%d", b'"'])


@st.composite
def delivered(draw: st.DrawFn) -> Delivered:
    is_json, raw_key = draw(st.booleans()), draw(st.booleans())
    headers = draw(st.sampled_from([(), (), [("mq-tag", b"red")], [("h", b"\xff")]]))
    return Delivered(
        topic=draw(st.sampled_from(["orders", "%RETRY%g", "gone", "a.b-c_d"])),
        partition=draw(st.integers(0, 1)),
        offset=draw(st.integers(0, 2**62)),
        key=draw(JSON if is_json and not raw_key else TEXT),
        value=draw(JSON if is_json else TEXT),
        headers=headers,
        timestamp_ms=draw(st.integers(-1, 2**62)),
        store_time_ms=draw(st.integers(0, 1)),
        json_value=is_json,
        raw_key=raw_key,
        tag="red" if headers == [("mq-tag", b"red")] else None,
        message_group=draw(st.sampled_from([None, "a"])) if headers else None,
        attempt=draw(st.integers(1, 2)),
        receipt=f"r2.AbC-_{draw(st.integers(0, 9))}.{draw(st.integers(0, 9))}",
        until_ms=draw(st.integers(0, 1)),
    )


def id_of(topic: str) -> int | None:
    return {"orders": 16, "%RETRY%g": 17, "a.b-c_d": 2**31}.get(topic)


@given(st.lists(delivered(), max_size=6))
def test_records_by_http(messages: list[Delivered]) -> None:
    written = delivered_as_list(messages, id_of)
    assert written == [orjson.dumps(delivered_as_json(one, id_of(one.topic))) for one in messages]


@given(st.lists(delivered(), max_size=6), st.booleans())
def test_records_on_a_socket(messages: list[Delivered], auto_ack: bool) -> None:
    queue = object.__new__(Queue)
    queue._command = cast(Subscribe, type("Said", (), {"auto_ack": auto_ack})())
    queue._form = Form.JSON
    assert queue._heads(messages) == [orjson.dumps(queue._message(one)[0]) for one in messages]


@given(
    st.lists(
        st.builds(Settled, st.sampled_from(["r2.a.0", "r2.a.1"]), st.just(True))
        | st.builds(Settled, st.sampled_from(["r2.a.0", '"', "ü"]), st.just(False), st.just(LEASE_OVER), st.text())
        | st.builds(Settled, st.just("r2.a.0"), st.just(True), new_receipt=st.just("r2.b.0")),
        max_size=4,
    )
)
def test_what_became_of_receipts(results: list[Settled]) -> None:
    assert settled_as_list(results) == orjson.dumps([settled_as_json(one) for one in results])
