"""mq.values: durations, times, bodies."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest
from mq.errors import MqError, Undecodable
from mq.values import decoder, encode_json, epoch_ms, lenient, milliseconds, seconds


@pytest.mark.parametrize(
    ("written", "expected"),
    [("250ms", 0.25), ("30s", 30), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), ("1.5s", 1.5), (7, 7), (0.5, 0.5),
     (timedelta(minutes=2), 120), (0, 0), ("1h 30m", 5400)],
)  # fmt: skip
def test_durations_are_read(written: Any, expected: float) -> None:
    assert seconds(written, "delay") == expected


@pytest.mark.parametrize(
    "written", ["", "5", "m", "5 minutes", "-5s", -1, float("nan"), float("inf"), True, None, [], "5m3"]
)
def test_what_is_no_duration_is_named(written: Any) -> None:
    with pytest.raises(MqError, match="delay: "):
        seconds(written, "delay")


def test_milliseconds_are_rounded_up_so_that_nothing_is_early() -> None:
    assert [milliseconds(one, "x") for one in ("1ms", 0.0011, 0.1, 1.1, "30s")] == [1, 2, 100, 1100, 30_000]


def test_times_need_a_zone_and_are_seconds() -> None:
    assert epoch_ms(datetime(2026, 1, 1, tzinfo=UTC), "at") == 1_767_225_600_000
    assert epoch_ms(1_767_225_600.123, "at") == 1_767_225_600_123
    for wrong in (datetime(2026, 1, 1), 1_767_225_600_000, -1, "2026-01-01", True):
        with pytest.raises(MqError, match="at: "):
            epoch_ms(wrong, "at")  # type: ignore[arg-type]


class Struct(msgspec.Struct):
    sku: int


@dataclass
class Data:
    sku: int


class Model(pydantic.BaseModel):
    sku: int


@pytest.mark.parametrize("type_", [Struct, Data, Model])
def test_typed_values_go_and_come(type_: Any) -> None:
    body = encode_json(type_(sku=9))
    assert body == b'{"sku":9}'
    assert decoder(type_)(body) == type_(sku=9)
    assert decoder(list[type_])(b'[{"sku":9}]') == [type_(sku=9)]
    for wrong in (b'{"sku":"x"}', b"{", b"", b"\xff", None):
        with pytest.raises(Undecodable):
            decoder(type_)(wrong)


def test_without_a_type_a_value_is_json_else_text_else_bytes() -> None:
    assert [lenient(body) for body in (b'{"a":1}', b"text", b"\xff", None, b"", b"1.5", b'"s"')] == [
        {"a": 1}, "text", b"\xff", None, "", 1.5, "s",
    ]  # fmt: skip
    assert lenient(b"[" * 100_000) == "[" * 100_000


def test_text_and_bytes_as_types() -> None:
    assert [decoder(bytes)(body) for body in (b"1", None)] == [b"1", None]
    assert [decoder(str)(body) for body in (b'"s"', b"plain", b"1", None)] == ["s", "plain", "1", None]
    with pytest.raises(Undecodable):
        decoder(str)(b"\xff")


def test_what_is_nested_too_deeply_is_text_or_undecodable() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert decoder(None)(deep) == decoder(str)(deep) == deep.decode()
    for type_ in (Struct, list[Any], dict[str, int]):
        with pytest.raises(Undecodable):
            decoder(type_)(deep)


def test_a_type_that_cannot_be_read_is_told_early_or_when_it_is_met() -> None:
    class Foreign: ...

    with pytest.raises((MqError, Undecodable)):
        decoder(Foreign)(b"1")


def test_what_json_cannot_say_is_told() -> None:
    for wrong in (object(), {1j: 1}, {"a": {2j}}):
        with pytest.raises(TypeError, match="cannot be sent as JSON"):
            encode_json(wrong)
