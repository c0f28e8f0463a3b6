"""Settings of groups and of the REST Proxy's consumer instances, whose own readers judge them."""

from __future__ import annotations

from dataclasses import fields

from gateway.groups.machines.config import BROADCAST, SHARED, GroupConfig
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BOOLEAN,
    COUNT,
    STRING,
    Schema,
    array,
    either,
    integer,
    mapping,
    nullable,
    obj,
    said,
    text,
    with_example,
    words,
)


def settings() -> dict[str, Schema]:
    """By name."""
    boolean = nullable(either(BOOLEAN, words("true", "false", "True", "False", "TRUE", "FALSE")))
    return {
        "GroupSettings": obj({item.name: _setting(item.name) for item in fields(GroupConfig)}),
        "GroupChanges": with_example(
            obj(
                {},
                {
                    **{item.name: nullable(_setting(item.name)) for item in fields(GroupConfig)},
                    "backoff_ms": nullable(either(array(integer(0, 31_536_000_000), least=1, most=64), STRING)),
                    "backoff": said(nullable(STRING), "backoff_ms as a text."),
                },
            ),
            {"max_attempts": 5, "backoff": "1s 10s 1m"},
        ),
        "NewInstance": with_example(
            said(
                {
                    **obj(
                        {},
                        {
                            "name": said(nullable(text(255, least=1)), "Made up when left out. `id` is the same."),
                            "id": nullable(text(255, least=1)),
                            "format": said(
                                nullable(STRING), "binary (default), json, text, avro, jsonschema, protobuf."
                            ),
                            "auto.offset.reset": said(nullable(STRING), "latest (default) or earliest."),
                            "auto.commit.enable": boolean,
                            "enable.auto.commit": said(boolean, "Strimzi's; its clients' commits are answered 204."),
                            "fetch.min.bytes": said(nullable(either(integer(-1, 10_000_000), STRING)), "1."),
                            "consumer.request.timeout.ms": nullable(either(integer(0, 600_000), STRING)),
                            "max.poll.records": nullable(either(integer(1, 100_000), STRING)),
                            "on.decode.error": said(nullable(STRING), "inline (default), skip, fail."),
                        },
                        others=True,
                    )
                },
                "Other settings of Kafka consumers are ignored.",
            ),
            {"name": "c1", "format": "json", "auto.offset.reset": "earliest"},
        ),
    }


def _setting(name: str) -> Schema:
    usual = getattr(GroupConfig(), name)
    if name == "mode":
        return words(SHARED, BROADCAST)
    if name == "strategy":
        return nullable(STRING)
    if isinstance(usual, bool):
        return BOOLEAN
    if isinstance(usual, int):
        return COUNT
    return array(COUNT) if isinstance(usual, tuple) else mapping(ANYTHING)
