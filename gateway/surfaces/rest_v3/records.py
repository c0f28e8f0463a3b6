"""Sending by the REST Proxy's v3 API.

POST .../{topic}/records         JSON objects one behind the other on one request of any length; a receipt each, as it
                                 is stored; a bad record has a bad receipt, and the stream goes on
POST .../{topic}/records:batch   {"entries": [{"id": "1", ...}]}: 207 with `successes` and `failures`
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Sequence
from functools import partial

import orjson
from aiohttp import web

from gateway.api.producer import Receipt
from gateway.api.render import add_fate
from gateway.api.shapes.base import load
from gateway.api.shapes.queries import NoQuery
from gateway.api.shapes.v3 import ENTRIES_MAX, V3BatchBody
from gateway.api.turns import in_turns
from gateway.codec.documents import Document, Values, single_object
from gateway.codec.json_steps import STEP_BYTES, parse_in_steps
from gateway.codec.json_text import parse_json
from gateway.codec.native import DOCUMENT_BYTES_MAX, Parsed, load_documents
from gateway.codec.records import ProduceRecord, parts
from gateway.codec.v3_records import DataTypes, data_types, parse_v3_record, plain_v3_record, receipt_of, rfc3339
from gateway.errors import RequestError
from gateway.routing.base import TopicView
from gateway.surfaces.http.admission import charge_bytes
from gateway.surfaces.http.answers import check_accept, json_answer
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.conditions import refuse_condition
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.idempotency import request_identity
from gateway.surfaces.http.media import JSON_TYPE
from gateway.surfaces.http.plain import TOPIC
from gateway.surfaces.http.plain_stream import PlainStream
from gateway.surfaces.http.produce_stream import ProduceStream, Sending, send_each
from gateway.surfaces.http.reading import BodyStream, read_query
from gateway.surfaces.http.streaming import StreamedAnswer
from gateway.surfaces.http.tracing import trace_headers
from gateway.surfaces.rest_v3.resources import links, topic_of
from gateway.surfaces.rest_v3.schema_data import BySchema, by_schema

STORED = 200


class V3Records:
    """Records and receipts of a v3 stream."""

    def __init__(self, cluster_id: str, topic: TopicView, by_schema: BySchema | None = None) -> None:
        """`by_schema` None: there is no schema registry."""
        self._cluster_id = cluster_id
        self._by_schema = by_schema
        self._topic = topic.name
        self._raw_keys = topic.raw_keys
        self._types: deque[DataTypes] = deque()  # of the records without a receipt yet

    async def parsed(self, documents: Sequence[Document]) -> Parsed:
        """See `Dialect.parsed`."""
        return await self.parsed_values(load_documents(documents))

    async def parsed_values(self, values: Sequence[object]) -> Parsed:
        """As `parsed`, for documents that are JSON values already."""
        return self._parse(values if self._by_schema is None else await self._by_schema.serialized(values))

    def parse(self, documents: Sequence[Document]) -> Parsed:
        """See `PlainDialect.parse`. What needs a schema is refused."""
        return self._parse(load_documents(documents))

    def _parse(self, values: Sequence[object]) -> Parsed:
        self._types.extend(map(data_types, values))
        return Parsed([parse_v3_record(value, raw_keys=self._raw_keys) for value in values], False)

    def parse_plain(self, document: bytes) -> ProduceRecord | None:
        """See `PlainDialect.parse_plain`."""
        value = orjson.loads(document)
        record = plain_v3_record(value, raw_keys=self._raw_keys)
        if record is not None:
            self._types.append(data_types(value))
        return record

    def receipt(self, request_index: int, record: ProduceRecord, receipt: Receipt) -> dict[str, object]:
        """See `Dialect.receipt`."""
        fields = receipt_of(
            self._cluster_id,
            self._topic,
            record,
            self._types.popleft(),
            partition=receipt.partition,
            offset=receipt.offset,
            timestamp_ms=receipt.timestamp_ms,
        )
        item = {"error_code": STORED, **fields}
        add_fate(item, receipt)
        return item

    def plain_receipt(self, record: ProduceRecord, receipt: Receipt) -> bytes:
        """See `PlainDialect.plain_receipt`."""
        if record.key is not None or record.value is None:
            return orjson.dumps(self.receipt(0, record, receipt))
        kind = self._types.popleft()[1]
        return (
            f'{{"error_code":{STORED},"cluster_id":"{self._cluster_id}","topic_name":"{self._topic}",'
            f'"partition_id":{receipt.partition},"offset":{receipt.offset},"timestamp":"{rfc3339(receipt.timestamp_ms)}",'
            f'"value":{{"type":"{kind}","size":{len(record.value)}}}}}'
        ).encode()

    def refusal(self, request_index: int, error: RequestError) -> dict[str, object]:
        """See `Dialect.refusal`."""
        self._types.popleft()
        return {"error_code": error.error_code, "message": error.message}

    def last_words(self, error: RequestError, request_index: int) -> dict[str, object]:
        """See `Dialect.last_words`."""
        return {"error_code": error.error_code, "message": error.message}


async def produce_records(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """Send records as they come: JSON objects one behind the other, of any number."""
    refuse_condition(request)
    read_query(NoQuery, request, gateway)
    to = links(gateway, request)
    view = topic_of(gateway, request)
    body = BodyStream(
        request,
        timeout_ms=gateway.config.body_timeout_ms,
        charge=lambda count: charge_bytes(gateway, request, count),
    )
    return await ProduceStream(
        gateway,
        topic=view.name,
        body=body.pieces(),
        splitter=Values(bytes_max=DOCUMENT_BYTES_MAX),
        dialect=V3Records(to.cluster_id, view, by_schema(gateway, view.name)),
        answer=StreamedAnswer(gateway, request, content_type=JSON_TYPE),
        access=access_of(request),
        trace=trace_headers(request),
        identity=request_identity(request, view.topic_id, None),
    ).run()


def plain_records(gateway: Gateway) -> PlainStream:
    """Streams of one record, for the fast path."""
    return PlainStream(
        gateway,
        "v3_produce",
        rf"(?:/kafka)?/v3/clusters/{re.escape(gateway.cluster_id)}/topics/{TOPIC}/records",
        document=single_object,
        dialect=partial(V3Records, gateway.cluster_id),
        json_values=False,
        content_type=JSON_TYPE,
    )


async def produce_batch(gateway: Gateway, request: web.Request, body: bytes) -> web.Response:
    """Send a batch: 207, whatever became of its entries."""
    check_accept(request)
    refuse_condition(request)
    read_query(NoQuery, request, gateway)
    to = links(gateway, request)
    view = topic_of(gateway, request)
    is_large = len(body) > STEP_BYTES
    steps = parse_in_steps(body, elements_max=ENTRIES_MAX)
    entries = _entries(gateway, await in_turns(steps) if is_large else parse_json(body))
    dialect = V3Records(to.cluster_id, view, by_schema(gateway, view.name))
    parsed = Parsed([], False)
    for part in parts(entries, len(body)):
        parsed.records.extend((await dialect.parsed_values(list(map(_without_id, part)))).records)
        if is_large:
            await asyncio.sleep(0)
    identity = request_identity(request, view.topic_id, body)
    sending = Sending(gateway, view.name, parsed.json_values, identity=identity)
    outcomes = await send_each(sending, parsed, trace=trace_headers(request))
    successes: list[dict[str, object]] = []
    failures: list[dict[str, object]] = []
    for request_index, (entry, record, outcome) in enumerate(zip(entries, parsed.records, outcomes, strict=True)):
        if isinstance(outcome, RequestError):
            failures.append({"id": entry["id"], **dialect.refusal(request_index, outcome)})
        else:
            assert not isinstance(record, RequestError)
            fields = dialect.receipt(request_index, record, outcome)
            del fields["error_code"]
            successes.append({"id": entry["id"], **fields})
    return json_answer(request, {"successes": successes, "failures": failures}, status=207)


def _entries(gateway: Gateway, batch: object) -> list[dict[str, object]]:
    """The entries of a batch, each an object with an id of its own. Raises RequestError."""
    load(V3BatchBody, batch, gateway.limits)
    assert isinstance(batch, dict)
    return list(batch["entries"])


def _without_id(entry: dict[str, object]) -> dict[str, object]:
    return {name: field for name, field in entry.items() if name != "id"}
