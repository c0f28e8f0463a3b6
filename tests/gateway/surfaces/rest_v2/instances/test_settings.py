"""gateway/surfaces/rest_v2/instances/settings.py: what the creator of an instance may say, in all dialects."""

from __future__ import annotations

import pytest

from gateway.codec.records import Format
from gateway.codec.schema_parts import SchemaFormat
from gateway.errors import RequestError
from gateway.groups.machines.membership import MEMBER_ID_BYTES_MAX, ROOM_BYTES_MAX
from gateway.groups.machines.progress import Start
from gateway.surfaces.rest_v2.instances.settings import (
    CONFIG_CONSTRAINT,
    CONFIG_ILLEGAL,
    FETCH_MIN_BYTES_MAX,
    POLL_RECORDS_MAX,
    REQUEST_TIMEOUT_MS_MAX,
    InstanceSettings,
    OnDecodeError,
    parse_settings,
    settings_as_json,
)


def test_nothing_said_is_what_the_rest_proxy_does() -> None:
    assert parse_settings({}) == (None, InstanceSettings())
    assert parse_settings({"topic.metadata.refresh.interval.ms": 5, "name": None}) == (None, InstanceSettings())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"format": "JSON"}, InstanceSettings(format=Format.JSON)),
        ({"format": "text"}, InstanceSettings(format=Format.TEXT)),
        ({"format": "Avro"}, InstanceSettings(format=SchemaFormat.AVRO)),
        ({"auto.offset.reset": "earliest"}, InstanceSettings(start=Start.FIRST)),
        ({"auto.offset.reset": "smallest"}, InstanceSettings(start=Start.FIRST)),
        ({"auto.offset.reset": "largest"}, InstanceSettings(start=Start.LAST)),
        ({"auto.commit.enable": "false"}, InstanceSettings(auto_commit=False)),
        ({"auto.commit.enable": False}, InstanceSettings(auto_commit=False)),
        ({"auto.commit.enable": "TRUE"}, InstanceSettings()),
        ({"enable.auto.commit": False}, InstanceSettings(auto_commit=False, is_strimzi=True)),
        ({"enable.auto.commit": "true"}, InstanceSettings(is_strimzi=True)),
        ({"fetch.min.bytes": -1}, InstanceSettings()),
        ({"fetch.min.bytes": 0}, InstanceSettings()),
        ({"fetch.min.bytes": FETCH_MIN_BYTES_MAX}, InstanceSettings(fetch_min_bytes=FETCH_MIN_BYTES_MAX)),
        ({"responseMinBytes": "7"}, InstanceSettings(fetch_min_bytes=7)),
        ({"consumer.request.timeout.ms": 0}, InstanceSettings(request_timeout_ms=0)),
        ({"requestWaitMs": REQUEST_TIMEOUT_MS_MAX}, InstanceSettings(request_timeout_ms=REQUEST_TIMEOUT_MS_MAX)),
        ({"max.poll.records": POLL_RECORDS_MAX}, InstanceSettings(poll_records_max=POLL_RECORDS_MAX)),
        ({"on.decode.error": "skip"}, InstanceSettings(on_decode_error=OnDecodeError.SKIP)),
        ({"client.rack": "r" * ROOM_BYTES_MAX}, InstanceSettings(room="r" * ROOM_BYTES_MAX)),
    ],
)
def test_what_can_be_said(body: dict[str, object], expected: InstanceSettings) -> None:
    assert parse_settings(body)[1] == expected
    assert parse_settings(settings_as_json(expected))[1] == expected


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"format": "xml"}, 422),
        ({"format": ["json"]}, 422),
        ({"auto.offset.reset": "none"}, CONFIG_ILLEGAL),
        ({"auto.offset.reset": 0}, CONFIG_ILLEGAL),
        ({"auto.commit.enable": 1}, CONFIG_ILLEGAL),
        ({"fetch.min.bytes": -2}, CONFIG_CONSTRAINT),
        ({"fetch.min.bytes": FETCH_MIN_BYTES_MAX + 1}, CONFIG_CONSTRAINT),
        ({"fetch.min.bytes": True}, CONFIG_CONSTRAINT),
        ({"fetch.min.bytes": "1x"}, CONFIG_CONSTRAINT),
        ({"consumer.request.timeout.ms": -1}, CONFIG_ILLEGAL),
        ({"consumer.request.timeout.ms": REQUEST_TIMEOUT_MS_MAX + 1}, CONFIG_ILLEGAL),
        ({"max.poll.records": 0}, CONFIG_ILLEGAL),
        ({"client.rack": "r" * (ROOM_BYTES_MAX + 1)}, CONFIG_ILLEGAL),
        ({"client.rack": 7}, CONFIG_ILLEGAL),
        ({"max.poll.records": POLL_RECORDS_MAX + 1}, CONFIG_ILLEGAL),
        ({"on.decode.error": "explode"}, CONFIG_ILLEGAL),
    ],
)
def test_what_cannot(body: dict[str, object], code: int) -> None:
    with pytest.raises(RequestError) as refused:
        parse_settings(body)
    assert refused.value.error_code == code


def test_names() -> None:
    assert parse_settings({"name": "n" * MEMBER_ID_BYTES_MAX})[0] == "n" * MEMBER_ID_BYTES_MAX
    assert parse_settings({"name": "my consumer: 1"})[0] == "my consumer: 1"
    assert parse_settings({"name": "n", "id": "i"})[0] == "i"
    for name in (
        "",
        "a/b",
        "..",
        ".",
        "a\nb",
        1,
        "é" * (MEMBER_ID_BYTES_MAX // 2 + 1),
        "n" * (MEMBER_ID_BYTES_MAX + 1),
    ):
        with pytest.raises(RequestError):
            parse_settings({"name": name})
