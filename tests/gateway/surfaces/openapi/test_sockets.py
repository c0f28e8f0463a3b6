"""gateway/surfaces/openapi/sockets.py against the parser of commands; frames are checked in every test of the
socket."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from gateway.errors import RequestError
from gateway.settings.limits import Limits
from gateway.surfaces.openapi import sockets
from gateway.surfaces.ws.commands import PERMISSIONS
from gateway.surfaces.ws.parse import parse_command
from tests import contract

DOCUMENT: dict[str, Any] = sockets.build_socket_document(limits=Limits(), version="1")
MESSAGES = DOCUMENT["components"]["messages"]
OPS = sockets.commands()

LEGAL: dict[str, list[dict[str, object]]] = {
    "hello": [{}, {"client": "c", "binary": True, "token": "t", "resume": "s", "seen": {"s1": 4}}],
    "auth": [{"token": "t"}],
    "produce": [
        {"topic": "orders", "records": [{"value": 1}]},
        {"topic": "orders", "records": [], "partition": 1, "format": "text", "acks": "written", "ack": False},
        {"topic": "orders", "records": [], "idempotency_key": "k1"},
    ],
    "subscribe": [
        {
            "sub": "s1",
            "topics": ["orders"],
            "from": "earliest",
            "epochs": {"orders": "16"},
            "filter": "tag:a",
            "format": "json",
            "credit": 5,
            "credit_bytes": 5,
            "auto_credit": False,
            "batch": 1,
        },
        {
            "sub": "s1",
            "pattern": "o.*",
            "mode": "stream",
            "group": "g",
            "member": "m",
            "room": "r",
            "start": "latest",
            "auto_ack": True,
        },
        {"sub": "s1", "topics": ["orders"], "mode": "queue", "group": "g", "invisible_ms": 5},
        {"sub": "s1", "topics": ["orders"], "queue": "user/42"},
        {"sub": "s1", "topics": ["orders"], "from": {"timestamp": 5}},
        {"sub": "s1", "topics": ["orders"], "from": {"orders": {"0": 5}}},
    ],
    "ack": [
        {"sub": "s1", "receipts": ["r"]},
        {"sub": "s1", "up_to": [{"topic": "orders", "partition": 0, "offset": 5}]},
        {"sub": "s1", "cursor": "orders:0=5"},
    ],
    "nack": [{"sub": "s1", "receipts": ["r"], "delay_ms": 5, "reason": "x"}],
    "reject": [{"sub": "s1", "receipts": ["r"], "reason": "x"}],
    "extend": [{"sub": "s1", "receipts": ["r"], "invisible_ms": 5}],
    "release": [{"sub": "s1", "partitions": {"orders": [0]}}],
    "seek": [{"sub": "s1", "to": "earliest"}],
    "permit": [{"sub": "s1", "messages": 5, "bytes": 5}],
    "pause": [{"sub": "s1"}],
    "resume": [{"sub": "s1"}],
    "unsubscribe": [{"sub": "s1"}],
    "seen": [{"subs": {"s1": 5}}],
    "ping": [{}],
}
"""Commands that together have every field."""


def validator(op: str) -> Draft202012Validator:
    return Draft202012Validator({**MESSAGES[op]["payload"], "components": DOCUMENT["components"]})


def fields_of(op: str, which: str = "properties") -> list[str]:
    return [name for name in MESSAGES[op]["payload"].get(which, ()) if name not in ("op", "id")]


def test_the_ops_are_those_of_the_parser() -> None:
    assert OPS.keys() == PERMISSIONS.keys() == LEGAL.keys()


@pytest.mark.parametrize("op", LEGAL)
def test_what_it_allows_the_parser_takes(op: str) -> None:
    for fields in LEGAL[op]:
        command = {"id": 1, "op": op, **fields}
        validator(op).validate(command)
        parse_command(command, Limits())
    named = {name for fields in LEGAL[op] for name in fields}
    assert named == set(fields_of(op))


@pytest.mark.parametrize("op", LEGAL)
def test_what_it_forbids_the_parser_refuses(op: str) -> None:
    whole = {"id": 1, "op": op, **LEGAL[op][0]}
    wrong: list[dict[str, object]] = [{**whole, "unknown": 1}, {**whole, "id": -1}]
    wrong += [
        {name: value for name, value in whole.items() if name != missing} for missing in fields_of(op, "required")
    ]
    wrong += [{**whole, name: {"a": [1.5]}} for name in fields_of(op) if name != "records"]
    for command in wrong:
        assert not validator(op).is_valid(command), command
        with pytest.raises(RequestError):
            parse_command(command, Limits())


def test_every_reference_leads_somewhere() -> None:
    def references(node: object) -> list[str]:
        if isinstance(node, dict):
            own = [node["$ref"]] if "$ref" in node else []
            return own + [ref for value in node.values() for ref in references(value)]
        return [ref for value in node for ref in references(value)] if isinstance(node, list) else []

    found = references(DOCUMENT)
    assert len(found) > 50
    for reference in found:
        node: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_a_frame_that_is_not_declared_is_noticed() -> None:
    contract.check_frame(b'{"op":"pong","ts":5}')
    for frame in (b'{"op":"pong"}', b'{"op":"pong","ts":5,"x":1}', b'{"id":1,"ok":true,"unknown":1}', b'{"op":"new"}'):
        with pytest.raises(AssertionError, match="not a declared answer"):
            contract.check_frame(frame)
