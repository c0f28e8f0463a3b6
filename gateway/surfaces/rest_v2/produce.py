"""POST /topics/{topic} and /topics/{topic}/partitions/{partition}: JSON records or raw batches in, receipts out.

Safe to repeat with an `Idempotency-Key`, a `msg_id` in the records, or a producer's sequence: what was stored before
is answered with its original offset and `"duplicate": true`.

Invariants
    V1  a JSON record that is refused for itself (its size, partition, encoding, delay, ...) has an error in its own
        entry of the answer, as REST Proxy has it, and the others are stored
    V2  the whole request is refused when no record is left, when what is wrong is not one record's (the envelope; an
        unknown field: a misspelt `delay_ms` must never send at once), and when it is to be stored whole or not at all
        (`Idempotency-Key`, `Mq-Sequence`, `If-Match`)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson
from aiohttp import hdrs, web

from gateway.api.producer import BatchReceipt, StoredBatch
from gateway.api.render import batch_receipt_as_json, receipt_as_json
from gateway.api.schemas import Chosen
from gateway.api.shapes.queries import SendQuery
from gateway.api.turns import in_turns
from gateway.codec.columns import Columns, columns_in_steps, columns_of
from gateway.codec.json_steps import STEP_BYTES, parse_in_steps
from gateway.codec.json_text import parse_json
from gateway.codec.native import Parsed
from gateway.codec.opened import opened
from gateway.codec.records import (
    BATCH_REFUSED,
    RECORD_FIELDS,
    Format,
    ProduceRecord,
    open_envelope,
    parse_records,
    parse_records_in_steps,
)
from gateway.codec.schema_parts import SchemaFormat
from gateway.codec.tags import DELAYED_HEADERS
from gateway.errors import RequestError, invalid
from gateway.routing.base import UnknownPartition
from gateway.surfaces.http.answers import check_accept
from gateway.surfaces.http.conditions import expected_offset
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.idempotency import mark_replayed, producer_sequence, request_identity
from gateway.surfaces.http.media import any_format_named, schemas_for, sent_format
from gateway.surfaces.http.produce_stream import Outcome, Sending, send_each
from gateway.surfaces.http.reading import let_go, partition_in, read_query
from gateway.surfaces.http.send_options import (
    DELAY_HEADERS,
    MQ_ACKS,
    Due,
    acks_named,
    delayed,
    due_named,
    name_of_acks,
)
from gateway.surfaces.http.tracing import Headers, trace_headers, traced
from gateway.surfaces.rest_v2.schema_records import serialized
from store import record_batch
from store.turns import others_turn
from store.types import Acks


async def produce(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Send records, as JSON in three formats or by a schema, or as raw batches. 200 when all are as durable as asked;
    `Mq-Acks` names the level reached."""
    content_type = check_accept(request)
    fmt = sent_format(request.headers.get(hdrs.CONTENT_TYPE, ""))
    acks: Acks | None = None
    selector: str | None = None
    due: Due | None = None
    if request.query_string or any(header in request.headers for header in DELAY_HEADERS.values()):
        query = read_query(SendQuery, request, gateway, headers=DELAY_HEADERS)
        acks = acks_named(query.acks)
        if fmt is not None and query.format is not None:
            fmt = any_format_named(query.format)
        selector = query.selector
        due = due_named(query)
    topic = request.match_info["topic"]
    partition = partition_in(request)
    view = gateway.routes_table.topic(topic)  # an unknown topic is told before a bad record
    identity = request_identity(request, view.topic_id, body)
    sequence = producer_sequence(request)
    expected = expected_offset(request)
    send = partial(
        gateway.producer.produce,
        topic,
        partition=partition,
        acks=acks,
        selector=selector,
        identity=identity,
        sequence=sequence,
        expected_offset=expected,
        gives_way=True,
    )
    receipts: Sequence[Outcome] | Sequence[BatchReceipt]
    singles: Sequence[Outcome]
    if fmt is None and due is None:
        batches = receipts = await gateway.producer.produce_batches(
            topic,
            body,
            partition=partition,
            acks=acks,
            selector=selector,
            identity=identity,
            sequence=sequence,
            expected_offset=expected,
        )
        offsets = orjson.dumps({"offsets": [batch_receipt_as_json(receipt) for receipt in batches]})
    elif fmt is None:
        # Each fires alone: from here on they are records, not batches.
        records = await _unpacked(body, due, gateway.limits.records_per_request_max)
        try:
            singles = receipts = await send(records, json_values=False)
        finally:
            await let_go(records, _ITEM_BYTES * sum(1 + len(record.headers) for record in records))
        offsets = rendered_receipts(singles)
    elif isinstance(fmt, SchemaFormat):
        schemas = schemas_for(gateway.schemas, fmt)
        made = await serialized(
            gateway, schemas, topic, fmt, await _envelope(body, gateway.limits.records_per_request_max), len(body)
        )
        trace = trace_headers(request)
        records = [traced(record, trace) for record in delayed(made.records, due)]
        try:
            singles = await send(records, json_values=False)
        except (RequestError, UnknownPartition):  # nothing was stored
            if identity or sequence or expected is not None or len(records) < 2:
                raise
            sending = Sending(gateway, topic, False, acks, partition=partition, selector=selector)
            singles = _if_any(await send_each(sending, Parsed([*records], False)))
        receipts = singles
        offsets = rendered_receipts(singles, made.key_schema, made.value_schema)
    else:
        records_max = gateway.limits.records_per_request_max
        is_large = len(body) > STEP_BYTES
        sent = await _opened(body, records_max)
        trace = trace_headers(request)
        is_whole = bool(identity or sequence or expected is not None)
        is_plain = not (is_whole or trace or selector or due)
        try:
            if is_plain and (columns := await _columns(sent, fmt, len(body), raw_keys=view.raw_keys)) is not None:
                # What was parsed goes before the records wait for the disk: thousands of objects of each request that
                # waits would be out of the processor's cache when they are let go, a sixth of what a request costs.
                if is_large and isinstance(sent, list):
                    await let_go(sent, len(body))
                sent, count = None, len(columns.values)
                sending_columns = gateway.producer.produce_columns(
                    topic, columns, partition=partition, json_values=fmt is Format.JSON, acks=acks
                )
                del columns
                stored = await sending_columns
                if stored is not None:
                    return _answer(content_type, rendered_columns(stored, count), stored)
                sent = await _opened(body, records_max)
            try:
                records = delayed(await _parsed(sent, fmt, len(body), raw_keys=view.raw_keys), due)
                if trace:
                    records = [traced(record, trace) for record in records]
                singles = await send(records, json_values=fmt is Format.JSON)
            except (RequestError, UnknownPartition):  # nothing was stored
                if is_whole or not isinstance(sent, list) or len(sent) < 2:
                    raise
                sending = Sending(gateway, topic, fmt is Format.JSON, acks, partition=partition, selector=selector)
                singles = await _send_each(sending, sent, fmt, trace, due, raw_keys=view.raw_keys)
        finally:
            if is_large and isinstance(sent, list):
                await let_go(sent, len(body))
        receipts = singles
        offsets = rendered_receipts(singles)
    response = _answer(content_type, offsets, receipts)
    if identity is not None or sequence is not None:
        mark_replayed(response.headers, [receipt for receipt in receipts if not isinstance(receipt, RequestError)])
    return response


async def _envelope(body: bytes, records_max: int) -> object:
    """The JSON of a body. Raises RequestError."""
    if len(body) > STEP_BYTES:
        return await in_turns(parse_in_steps(body, elements_max=records_max))
    return parse_json(body)


async def _opened(body: bytes, records_max: int) -> object:
    """The `records` of a body as the parser makes them. Raises RequestError."""
    return open_envelope(await _envelope(body, records_max), records_max=records_max)


async def _columns(sent: object, fmt: Format, size_bytes: int, *, raw_keys: bool) -> Columns | None:
    """As `columns_of`; of a large body with others' turns in between."""
    if size_bytes <= STEP_BYTES:
        return columns_of(sent, fmt, raw_keys=raw_keys)
    return await in_turns(columns_in_steps(sent, fmt, raw_keys=raw_keys, size_bytes=size_bytes))


async def _parsed(sent: object, fmt: Format, size_bytes: int, *, raw_keys: bool) -> list[ProduceRecord]:
    """As `parse_records`; of a large body with others' turns in between."""
    if size_bytes <= STEP_BYTES:
        return parse_records(sent, fmt, raw_keys=raw_keys)
    parsed = await in_turns(parse_records_in_steps(sent, fmt, raw_keys=raw_keys, size_bytes=size_bytes))
    await others_turn()  # to prepare and encode thousands takes as long as some steps
    return parsed


async def _unpacked(body: bytes, due: Due | None, records_max: int) -> list[ProduceRecord]:
    """The records of raw batches laid end to end, with this due time. Raises RequestError, MalformedBatch,
    IllegalRecord."""
    records: list[ProduceRecord] = []
    for batch in record_batch.split(body):
        header = await in_turns(record_batch.check_in_steps(batch, limited=True))
        if len(records) + header.record_count > records_max:
            raise RequestError(BATCH_REFUSED, f"More than {records_max} delayed records in one request.")
        left = record_batch.STEP_ITEMS
        for record in opened(batch, allowed=DELAYED_HEADERS):
            records += delayed([record], due)
            left -= 2 + 4 * len(record.headers)  # which are looked at several times
            if left <= 0:
                left = record_batch.STEP_ITEMS
                await others_turn()
        await others_turn()
    if not records:
        raise invalid("records must not be empty")
    return records


async def _send_each(
    sending: Sending, sent: Sequence[object], fmt: Format, trace: Headers, due: Due | None, *, raw_keys: bool
) -> list[Outcome]:
    """Send what is good of a request that was refused: a receipt or a refusal for each record (V1). Raises RequestError
    (V2)."""
    parsed: list[ProduceRecord | RequestError] = []
    for request_index, item in enumerate(sent):
        try:
            parsed += delayed(parse_records([item], fmt, raw_keys=raw_keys), due)
        except RequestError as refusal:
            if not isinstance(item, dict) or not item.keys() <= RECORD_FIELDS:
                at = f"records[{request_index}]: {refusal.message}"
                raise RequestError(refusal.error_code, refusal.message, validation_errors=[at]) from None
            parsed.append(refusal)
        if request_index % _TURN_RECORDS == 0:
            await others_turn()
    return _if_any(await send_each(sending, Parsed(parsed, sending.json_values), trace=trace))


def _if_any(outcomes: list[Outcome]) -> list[Outcome]:
    """What became of records, if some were stored. Raises RequestError (V2)."""
    refusals = [outcome for outcome in outcomes if isinstance(outcome, RequestError)]
    if len(refusals) == len(outcomes):
        first = next((one for one in refusals if one.retriable), refusals[0])
        first.details = {"offsets": [_refused(one) for one in refusals]}
        raise first
    return outcomes


_NO_ERROR = {"error_code": None, "error": None}
_ITEM_BYTES = 64  # of JSON take as long to free as a record of a raw batch, or one of its headers
_TURN_RECORDS = 256  # parsed one by one between two turns of the event loop


def _answer(
    content_type: str,
    body: bytes,
    receipts: Sequence[Outcome] | Sequence[BatchReceipt] | Sequence[StoredBatch],
) -> web.Response:
    reached = min(receipt.acks for receipt in receipts if not isinstance(receipt, RequestError))
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type, MQ_ACKS: name_of_acks(reached)})


def rendered_columns(stored: Sequence[StoredBatch], count: int) -> bytes:
    """What `rendered_receipts` makes of new records, from the base offsets of whole batches."""
    if len(stored) == 1:  # the same between all
        [(partition, _, base_offset, _)] = stored
        between = b',"error_code":null,"error":null},{"partition":%d,"offset":' % partition
        numbers = orjson.dumps([*range(base_offset, base_offset + count)])[1:-1].replace(b",", between)
        offsets = b'{"partition":%d,"offset":%b,"error_code":null,"error":null}' % (partition, numbers)
    else:
        items = [b""] * count
        for partition, request_indexes, base_offset, _ in stored:
            form = b'{"partition":%d,"offset":%%d' % partition
            for offset, request_index in enumerate(request_indexes, base_offset):
                items[request_index] = form % offset
        offsets = b',"error_code":null,"error":null},'.join(items) + b',"error_code":null,"error":null}'
    return b'{"offsets":[%b],"key_schema_id":null,"value_schema_id":null}' % offsets


def rendered_receipts(
    receipts: Sequence[Outcome], key_schema: Chosen | None = None, value_schema: Chosen | None = None
) -> bytes:
    """The answer to records sent as JSON, and which schemas they were serialized by."""
    offsets = [
        _refused(receipt) if isinstance(receipt, RequestError) else receipt_as_json(receipt) | _NO_ERROR
        for receipt in receipts
    ]
    ids = [None if schema is None else schema.schema_id for schema in (key_schema, value_schema)]
    return orjson.dumps({"offsets": offsets, "key_schema_id": ids[0], "value_schema_id": ids[1]})


def _refused(refusal: RequestError) -> dict[str, object]:
    return {"partition": None, "offset": None, "error_code": refusal.error_code, "error": refusal.message}
