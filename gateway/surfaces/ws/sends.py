"""Records that a socket sends: from a `produce` command, in text or in a binary frame, to the answer.

In a binary frame keys and values are in the payload, one behind the other, and each record says how long its own are.
"""

from __future__ import annotations

from gateway.api.producer import Producer
from gateway.api.render import batch_receipt_as_json, receipt_as_json
from gateway.codec.records import BATCH_REFUSED, Format, ProduceRecord, parse_raw_record, parse_records
from gateway.errors import RequestError, bad_request, invalid
from gateway.surfaces.ws.commands import Produce

Records = bytes | list[ProduceRecord]
"""What is sent: raw batches, or records."""


def records_of(command: Produce, payload: memoryview | None, count_max: int) -> Records:
    """What a produce sends. `payload` None: it came in a text frame. Raises RequestError; then nothing is stored."""
    records = command.records
    if command.format is None:
        if payload is None or records is not None:
            raise invalid("format: batch needs a binary frame whose payload is RecordBatches, and no records")
        return bytes(payload)
    if isinstance(records, list) and len(records) > count_max:
        raise RequestError(BATCH_REFUSED, f"{len(records)} records in one command; the limit is {count_max}.")
    if payload is None:
        return parse_records(records, command.format)
    return _binary_records(records, payload)


async def send(producer: Producer, command: Produce, records: Records, *, is_binary: bool) -> dict[str, object]:
    """Store them; the fields of the answer. `is_binary`: keys and values came as bytes, which need not be JSON.

    Raises RequestError, StoreError.
    """
    if isinstance(records, bytes):
        batches = await producer.produce_batches(command.topic, records, partition=command.partition, acks=command.acks)
        reached = min(receipt.acks for receipt in batches)
        offsets = [batch_receipt_as_json(receipt) for receipt in batches]
    else:
        receipts = await producer.produce(
            command.topic,
            records,
            partition=command.partition,
            json_values=command.format is Format.JSON and not is_binary,
            acks=command.acks,
        )
        reached = min(receipt.acks for receipt in receipts)
        offsets = [receipt_as_json(receipt) for receipt in receipts]
    return {"acks": reached.name.lower(), "offsets": offsets}


def _binary_records(records: object, payload: memoryview) -> list[ProduceRecord]:
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
        for name in ("key", "value"):
            if name in record:
                raise invalid(f"records[{number}].{name}: is in the payload of a binary frame")
        try:
            parsed.append(parse_raw_record(record, parts[0], parts[1]))
        except RequestError as error:
            raise RequestError(
                error.error_code,
                error.message,
                validation_errors=[f"records[{number}]: {error.message}"],
            ) from None
    if position != len(payload):
        raise bad_request(f"The payload has {len(payload)} bytes; keys and values take {position}.")
    return parsed
