"""Plain requests of the REST Proxy's v2 API, for the fast path: one JSON record, or one raw batch."""

from __future__ import annotations

import re
from functools import partial

import orjson
from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import BatchReceipt, Receipt
from gateway.api.render import batch_receipt_as_json
from gateway.codec.json_text import parse_json
from gateway.codec.records import Format, ProduceRecord, only_value, open_envelope, parse_records, plain_record
from gateway.codec.schema_parts import SchemaFormat
from gateway.routing.base import TopicView
from gateway.settings.limits import Limits
from gateway.surfaces.http.media import V2_TYPE, json_type, sent_format
from gateway.surfaces.http.plain import ACKS, BODY_BYTES_MAX, TOPIC, Asked, Sent, head_of
from gateway.surfaces.http.send_options import acks_named
from store.limits import MiB

BATCH_BODY_BYTES_MAX = 1 * MiB
"""Of a raw batch that is checked in one turn of the event loop."""

_TARGET = re.compile(rf"/topics/{TOPIC}(?:/partitions/([0-9]{{1,9}}))?{ACKS}", re.ASCII)
_BODY = (
    b'{"offsets":[{"partition":%d,"offset":%d,"error_code":null,"error":null}],'
    b'"key_schema_id":null,"value_schema_id":null}'
)
_JSON = Format.JSON  # to ask an enum for its member costs as much as a call
_ROUTES = ("produce", "produce_partition")


def _read(message: RawRequestMessage, *, is_batch: bool) -> Asked | None:
    match = _TARGET.fullmatch(message.path)
    if match is None:
        return None
    fmt = sent_format(message.headers.get(hdrs.CONTENT_TYPE, ""))
    if (fmt is None) is not is_batch or isinstance(fmt, SchemaFormat):
        return None
    content_type = json_type(message.headers.get(hdrs.ACCEPT, "*/*"), V2_TYPE)
    topic, number, acks = match.groups()
    partition = None if number is None else int(number)
    return Asked(
        topic, partition, acks_named(acks), _ROUTES[partition is not None], head_of("200 OK", content_type), fmt
    )


class V2Records:
    """JSON records in three formats; see `plain.RecordForm`."""

    routes = _ROUTES
    bytes_max = BODY_BYTES_MAX
    read = staticmethod(partial(_read, is_batch=False))

    def __init__(self, limits: Limits) -> None:
        self._records_max = limits.records_per_request_max

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | None:
        """See `plain.RecordForm`."""
        fmt: Format = asked.detail
        envelope = parse_json(body)
        if fmt is _JSON and (record := only_value(envelope)) is not None:
            return record, True, None
        records = open_envelope(envelope, records_max=self._records_max)
        # Of several not even one is looked at: they are parsed again, by those who send them.
        if records.__class__ is not list or len(records) != 1:
            return None
        record = plain_record(records[0], raw_keys=view.raw_keys) if fmt is _JSON else None
        if record is None:
            [record] = parse_records(records, fmt, raw_keys=view.raw_keys)
        return record, fmt is _JSON, None

    def answer(self, asked: Asked, record: ProduceRecord, detail: None, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        return _BODY % receipt[:2]


class V2Batches:
    """Raw batches; see `plain.BatchForm`."""

    routes = _ROUTES
    bytes_max = BATCH_BODY_BYTES_MAX
    read = staticmethod(partial(_read, is_batch=True))

    def answer(self, receipt: BatchReceipt) -> bytes:
        """See `plain.BatchForm`."""
        return orjson.dumps({"offsets": [batch_receipt_as_json(receipt)]})
