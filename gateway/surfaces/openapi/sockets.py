"""The AsyncAPI 3.0 document of the socket: every op with its fields and its answer, and every push. Pure.

docs/websocket.md has the rules of the conversation; this has the shape of each frame. Commands are the structs that the
parser fills; what they are answered with is written here, and held to by every test of the socket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.api.shapes.commands import COMMANDS, ID_MAX, SUB_CHARS_MAX
from gateway.api.shapes.schema import schema_of
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.schemas import schemas
from gateway.surfaces.openapi.schemas.shown import NATIVE_PARTS
from gateway.surfaces.openapi.shapes import (
    ANYTHING,
    BASE64,
    BOOLEAN,
    COUNT,
    OFFSET,
    PARTITION,
    STRING,
    TIME_MS,
    Schema,
    array,
    either,
    exactly,
    integer,
    mapping,
    nullable,
    obj,
    said,
    text,
    with_example,
    words,
)

ASYNCAPI_VERSION = "3.0.0"
ID: Schema = said(integer(0, ID_MAX), "Echoed by the answer. Without it there is none.")
SUB: Schema = said(text(SUB_CHARS_MAX, least=1), "The subscription's name.")

_PARTITIONS_BY_TOPIC = mapping(array(PARTITION))
_CURSOR = said(STRING, "Next offsets: `orders:0=101;orders:1=88`.")
_ERROR: dict[str, Schema] = {"error_code": integer(400, 50_999), "message": STRING, "retriable": BOOLEAN}
_ERROR_MORE: dict[str, Schema] = {
    "details": mapping(ANYTHING),
    "validation_errors": array(STRING),
    "retry_after_ms": COUNT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One command, and the fields of its answer. Its own are in `gateway/api/shapes/commands.py`."""

    description: str
    answer: Mapping[str, Schema]
    answer_more: Mapping[str, Schema]


def _op(
    description: str,
    *,
    answer: Mapping[str, Schema] | None = None,
    more: Mapping[str, Schema] | None = None,
) -> Op:
    return Op(
        description=description,
        answer=answer or {},
        answer_more=more or {},
    )


def commands() -> dict[str, Op]:
    """The ops."""
    confirmed = {"sub": SUB}
    result = either(
        obj({"receipt": STRING, "ok": BOOLEAN}, {"new_receipt": STRING, "error_code": COUNT, "error": STRING}),
        obj(
            {"topic": STRING, "partition": PARTITION, "ok": BOOLEAN},
            {"count": COUNT, "error_code": COUNT, "error": STRING},
        ),
    )
    results = {"results": said(array(result), "One for each receipt or offset, in order.")}
    settings = obj(dict.fromkeys(("max_frame", "max_subs", "max_credit", "max_credit_bytes", "max_records"), COUNT))
    receipt = obj(
        {"partition": PARTITION, "offset": nullable(OFFSET)},
        {"schedule_id": STRING, "deliver_at": TIME_MS, "duplicate": exactly(True), "record_count": COUNT},
    )
    return {
        "hello": _op(
            "Who one is, and what one understands. Optional; the first command, once.",
            answer={
                "session": said(STRING, "A secret: who knows it can take the session over."),
                "resumed": BOOLEAN,
                "binary": BOOLEAN,
                "server": STRING,
                "ping_ms": COUNT,
                "grace_ms": said(COUNT, "How long the session waits for a lost client."),
                "limits": settings,
            },
            more={
                "subs": said(mapping(mapping(ANYTHING)), "After a resume: where each subscription goes on."),
                "ended": said(mapping(obj(_ERROR, _ERROR_MORE)), "After a resume: those that cannot."),
            },
        ),
        "auth": _op(
            "Go on with a new token of the same principal.",
            answer={"expires_at": said(nullable(TIME_MS), "null: not by itself.")},
        ),
        "produce": _op(
            "Store records. Answered when they are as safe as asked for. Right: send.",
            answer={"acks": words("written", "flushed"), "offsets": array(receipt)},
        ),
        "subscribe": _op(
            "Receive records. Right: receive, on the topics and the group.",
            answer={
                "sub": SUB,
                "mode": words("reader", "stream", "queue"),
                "epochs": mapping(STRING),
                "partitions": _PARTITIONS_BY_TOPIC,
                "credit": {"type": "integer"},
            },
            more={"cursor": _CURSOR, "member": STRING, "generation": COUNT, "credit_bytes": {"type": "integer"}},
        ),
        "ack": _op(
            "Done with these: one of receipts, up_to and cursor. Right: receive, on the group.",
            answer=results,
        ),
        "nack": _op(
            "Not done: hand them out again after delay_ms, or the group's back-off.",
            answer=results,
        ),
        "reject": _op(
            "Never again: to the dead-letter topic.",
            answer=results,
        ),
        "extend": _op(
            "Keep them longer; results have new receipts.",
            answer=results,
        ),
        "release": _op(
            "Give up revoked partitions at once.",
            answer=confirmed,
        ),
        "seek": _op("Go on elsewhere.", answer={**confirmed, "cursor": _CURSOR}),
        "permit": _op(
            "More credit, in addition to what is left.",
            answer=confirmed,
        ),
        "pause": _op("Push nothing until `resume`.", answer=confirmed),
        "resume": _op("Push again.", answer=confirmed),
        "unsubscribe": _op("End a subscription.", answer=confirmed),
        "seen": _op("Frames that were taken in need not be remembered."),
        "ping": _op("Are you there?", answer={"op": exactly("pong"), "ts": TIME_MS}),
    }


def _command(op: str, description: str, limits: Limits) -> Schema:
    schema = schema_of(COMMANDS[op], limits)
    return {**schema, "properties": {**schema["properties"], "op": exactly(op)}, "description": description}


def pushes() -> dict[str, Schema]:
    """What the server says unasked, by `op`."""
    generation = {"generation": COUNT}
    signed: Schema = {"type": "integer"}
    message = obj(
        {"topic": STRING, "partition": PARTITION, "offset": OFFSET, "timestamp": TIME_MS, "store_timestamp": TIME_MS},
        {
            **NATIVE_PARTS,
            "key_len": said(nullable(COUNT), "In binary frames: its bytes are in the payload."),
            "raw_key": said({"const": True}, "In binary frames: the key is a string, or bytes, not JSON."),
            "value_len": nullable(COUNT),
            "headers": array(obj({"key": STRING, "value": nullable(BASE64)})),
            "tag": STRING,
            "deliver_at": nullable(TIME_MS),
            "schedule_id": STRING,
            "schedule_key": STRING,
            "cursor": said(STRING, "In reader and stream mode."),
            "message_id": nullable(STRING),
            "receipt": said(STRING, "In queue mode."),
            "attempt": integer(1),
            "visible_until": TIME_MS,
            "message_group": STRING,
            "queue": said(STRING, "The light queue that was subscribed to."),
            "queue_offset": said(COUNT, "In that queue; `offset` is the partition's."),
            "queues": said(array(STRING), "With a wildcard: the light queues whose names match."),
        },
    )
    numbered = {"sub": SUB, "seq": said(COUNT, "Frames of a subscription are numbered from 1."), "bytes": COUNT}
    credit = {"credit_bytes": signed}
    return {
        "messages": with_example(
            obj(
                {"op": exactly("messages"), **numbered, "messages": array(message), "credit": signed},
                credit,
                description="Records.",
            ),
            {
                "op": "messages",
                "sub": "s1",
                "seq": 1,
                "messages": [
                    {
                        "topic": "orders",
                        "key": "u1",
                        "value": {"sku": 9},
                        "partition": 0,
                        "offset": 0,
                        "timestamp": 1795258151218,
                        "store_timestamp": 1795258151219,
                        "cursor": "orders:0=1",
                    }
                ],
                "bytes": 150,
                "credit": 999,
            },
        ),
        "batch": obj(
            {
                "op": exactly("batch"),
                **numbered,
                "topic": STRING,
                "partition": PARTITION,
                "offset": OFFSET,
                "next_offset": OFFSET,
                "count": COUNT,
                "cursor": _CURSOR,
                "credit": signed,
            },
            credit,
            description="The header of a binary frame whose payload is whole RecordBatches.",
        ),
        "caught_up": obj(
            {"op": exactly("caught_up"), "sub": SUB, "cursor": _CURSOR},
            description="Every partition has reached its end; once.",
        ),
        "assigned": obj(
            {"op": exactly("assigned"), "sub": SUB, "partitions": _PARTITIONS_BY_TOPIC, "cursor": _CURSOR},
            generation,
            description="Records of these partitions follow.",
        ),
        "revoked": obj(
            {"op": exactly("revoked"), "sub": SUB, "partitions": _PARTITIONS_BY_TOPIC},
            {**generation, "drain_ms": COUNT, "lost": exactly(True)},
            description="No records of these partitions follow; `lost`: another has them already.",
        ),
        "auth_expiring": obj(
            {"op": exactly("auth_expiring"), "in_ms": COUNT}, description="The rights end then, unless `auth` comes."
        ),
        "goaway": obj(
            {"op": exactly("goaway"), "reason": exactly("shutdown"), "reconnect_after_ms": COUNT, "resume": STRING},
            description="The server is about to stop.",
        ),
        "error": obj(
            {"op": exactly("error"), **_ERROR},
            {"sub": said(SUB, "The subscription that ended."), **_ERROR_MORE},
            description="What no answer can carry.",
        ),
        "pong": obj({"op": exactly("pong"), "ts": TIME_MS}, description="To a ping without id."),
    }


def answers(limits: Limits) -> dict[str, Schema]:
    """What each op is answered with, by op; `refused` and `receipt` (of /ws/v1/produce) beside them."""
    found = {op: obj({"id": ID, "ok": exactly(True), **one.answer}, one.answer_more) for op, one in commands().items()}
    found["refused"] = obj({"id": ID, "ok": exactly(False), **_ERROR}, _ERROR_MORE)
    return found


def produce_frames() -> dict[str, Schema]:
    """What `/ws/v1/produce` answers to each frame."""
    return {
        "stored": obj(
            {"ok": exactly(True), "n": said(integer(1), "Which frame."), "acks": words("written", "flushed"),
             "partition": PARTITION, "offset": nullable(OFFSET)},
            {"schedule_id": STRING, "deliver_at": TIME_MS, "duplicate": exactly(True)},
        ),
        "not_stored": obj({"ok": exactly(False), "n": integer(1), **_ERROR}, _ERROR_MORE),
    }  # fmt: skip


def build_socket_document(*, limits: Limits, version: str) -> dict[str, object]:
    """The AsyncAPI document."""
    ops = commands()
    payloads: dict[str, tuple[Schema, str]] = {
        op: (_command(op, one.description, limits), one.description) for op, one in ops.items()
    }
    for op, schema in answers(limits).items():
        payloads[f"{op}.answer"] = (schema, "A command was refused." if op == "refused" else f"To `{op}`.")
    for op, schema in pushes().items():
        payloads[f"{op}.push"] = (schema, str(schema.get("description", "")))
    for name, schema in produce_frames().items():
        payloads[f"{name}.receipt"] = (schema, "To one frame.")
    channels = {
        "socket": ("/ws/v1", [name for name in payloads if not name.endswith(".receipt")]),
        "produce": ("/ws/v1/produce", [name for name in payloads if name.endswith(".receipt")]),
    }
    operations: dict[str, object] = {}
    for op in ops:
        operations[op] = {
            "action": "receive",
            "channel": _channel("socket"),
            "messages": [_message("socket", op)],
            "reply": {
                "channel": _channel("socket"),
                "messages": [_message("socket", f"{op}.answer"), _message("socket", "refused.answer")],
            },
        }
    for op in pushes():
        operations[f"{op}.push"] = {
            "action": "send",
            "channel": _channel("socket"),
            "messages": [_message("socket", f"{op}.push")],
        }
    operations["receipt"] = {
        "action": "send",
        "channel": _channel("produce"),
        "messages": [_message("produce", f"{name}.receipt") for name in produce_frames()],
    }
    shared = schemas(limits)
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "mq sockets",
            "version": version,
            "description": "One JSON object a text frame. A client may also send an array of commands, or commands on "
            "lines of their own. Subprotocol `mq.v1.json`, or none. `/ws/v1/consume` is `/ws/v1` with a first "
            "`subscribe` made of its query; its answer has id 0.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {
            name: {
                "address": address,
                "messages": {message: {"$ref": f"#/components/messages/{message}"} for message in messages},
            }
            for name, (address, messages) in channels.items()
        },
        "operations": operations,
        "components": {
            "messages": {
                name: {"name": name, "summary": summary, "payload": schema}
                for name, (schema, summary) in payloads.items()
            },
            "schemas": {name: shared[name] for name in ("JsonRecord", "BinaryRecord", "TextRecord", "HeaderToSend")},
        },
    }


def _channel(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/{name}"}


def _message(channel: str, name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/{channel}/messages/{name}"}
