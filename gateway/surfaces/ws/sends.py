"""Records that a socket sends: from a `produce` command, in text or in a binary frame, to the answer.

In a binary frame keys and values are in the payload, one behind the other, and each record says how long its own are; a
key may be in the record instead, as JSON. In a text frame of format `json` bytes may be `value_b64` or `key_b64`.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from gateway.api.producer import Producer, RequestIdentity
from gateway.api.render import batch_receipt_as_json, receipt_as_json
from gateway.codec.json_steps import STEP_BYTES
from gateway.codec.native import has_form, parse_objects
from gateway.codec.records import (
    BATCH_REFUSED,
    Format,
    ProduceRecord,
    encode_keys,
    parse_raw_record,
    parse_records,
    parse_records_in_steps,
    parts,
)
from gateway.errors import RequestError, bad_request, invalid
from gateway.surfaces.ws.commands import Produce


class Records(NamedTuple):
    """What is sent; `json_values` as `store.types.Append` has it."""

    records: list[ProduceRecord]
    json_values: bool


def records_in_steps(
    command: Produce, payload: memoryview | None, count_max: int, *, raw_keys: bool, size_bytes: int
) -> Generator[None, None, Records | bytes]:
    """What a produce sends: records, or raw batches. `payload` None: it came in a text frame. `raw_keys`: those of the
    topic are; `size_bytes`: of the command. Raises RequestError; then nothing is stored."""
    records = command.records
    if command.format is None:
        if payload is None or records is not None:
            raise invalid("format: batch needs a binary frame whose payload is RecordBatches, and no records")
        return bytes(payload)
    if isinstance(records, list) and len(records) > count_max:
        raise RequestError(BATCH_REFUSED, f"{len(records)} records in one command; the limit is {count_max}.")
    if payload is not None:
        return Records(_binary_records(records, payload, raw_keys), False)
    if command.format is Format.JSON and isinstance(records, list) and any(map(has_form, records)):
        return (yield from _native_records(records, raw_keys, size_bytes))
    is_json = command.format is Format.JSON
    if size_bytes <= STEP_BYTES:
        return Records(parse_records(records, command.format, raw_keys=raw_keys), is_json)
    steps = parse_records_in_steps(records, command.format, raw_keys=raw_keys, size_bytes=size_bytes)
    return Records((yield from steps), is_json)


async def send(
    producer: Producer, command: Produce, sent: Records | bytes, identity: RequestIdentity | None = None
) -> dict[str, object]:
    """Store them; the fields of the answer. `identity`: by what a repeat is recognised. Raises RequestError,
    StoreError."""
    if isinstance(sent, bytes):
        batches = await producer.produce_batches(
            command.topic, sent, partition=command.partition, acks=command.acks, identity=identity
        )
        reached = min(receipt.acks for receipt in batches)
        offsets = [batch_receipt_as_json(receipt) for receipt in batches]
    else:
        receipts = await producer.produce(
            command.topic,
            sent.records,
            partition=command.partition,
            json_values=sent.json_values,
            acks=command.acks,
            identity=identity,
        )
        reached = min(receipt.acks for receipt in receipts)
        offsets = [receipt_as_json(receipt) for receipt in receipts]
    return {"acks": reached.name.lower(), "offsets": offsets}


def _native_records(records: list[object], raw_keys: bool, size_bytes: int) -> Generator[None, None, Records]:
    """Records some of which have bytes in base64. Raises RequestError for the first bad one."""
    taken: list[ProduceRecord] = []
    json_values = True
    for part in parts(records, size_bytes):
        if taken:
            yield
        parsed = parse_objects(part, raw_keys=raw_keys)
        json_values = json_values and parsed.json_values
        for record in parsed.records:
            if isinstance(record, RequestError):
                raise _at_record(record, len(taken))
            taken.append(record)
    return Records(taken, json_values)


def _at_record(error: RequestError, number: int) -> RequestError:
    return RequestError(error.error_code, error.message, validation_errors=[f"records[{number}]: {error.message}"])


def _binary_records(records: object, payload: memoryview, raw_keys: bool) -> list[ProduceRecord]:
    """Records whose keys and values are in the payload, one behind the other. Raises RequestError."""
    if not isinstance(records, list) or not records:
        raise invalid("records: must be an array of one or more objects")
    parsed: list[ProduceRecord] = []
    position = 0
    for number, record in enumerate(records):
        if not isinstance(record, dict):
            raise bad_request(f"records[{number}]: must be a JSON object")
        parts: list[bytes | None] = []
        for name in ("key_len", "value_len"):
            length = record.pop(name, None)
            if length is None:
                parts.append(None)
                continue
            if length.__class__ is not int or not 0 <= length <= len(payload) - position:
                raise bad_request(f"records[{number}].{name}: {length!r} is not a length within the payload")
            parts.append(bytes(payload[position : position + length]))
            position += length
        if "value" in record or ("key" in record and parts[0] is not None):
            name = "value" if "value" in record else "key"
            raise invalid(f"records[{number}].{name}: is in the payload of a binary frame")
        try:
            if (key := record.pop("key", None)) is not None:
                parts[0] = encode_keys([key], Format.JSON, raw_keys=raw_keys)[0]
            parsed.append(parse_raw_record(record, parts[0], parts[1]))
        except RequestError as error:
            raise _at_record(error, number) from None
    if position != len(payload):
        raise bad_request(f"The payload has {len(payload)} bytes; keys and values take {position}.")
    return parsed
