"""Plain requests of the REST Proxy's v2 API, for the fast path: JSON records, one raw batch, or a pull."""

from __future__ import annotations

import re
from functools import partial

import orjson
from aiohttp import hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import BatchReceipt, Receipt
from gateway.api.render import batch_receipt_as_json
from gateway.api.shapes.queries import FetchQuery
from gateway.auth.access import Permission
from gateway.codec.columns import columns_of, strings_of
from gateway.codec.json_steps import STEP_BYTES
from gateway.codec.json_text import parse_json
from gateway.codec.records import Format, ProduceRecord, only_value, open_envelope, parse_records, plain_record
from gateway.codec.schema_parts import SchemaFormat
from gateway.routing.base import TopicView
from gateway.settings.limits import Limits
from gateway.surfaces.http.caller import Caller
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.media import V2_TYPE, json_type, sent_format
from gateway.surfaces.http.plain import ACKS, BODY_BYTES_MAX, TOPIC, Asked, Call, Many, Sent, head_of
from gateway.surfaces.http.reading import query_of
from gateway.surfaces.http.send_options import acks_named
from gateway.surfaces.rest_v2.fetch import form_of, pulled
from gateway.surfaces.rest_v2.produce import rendered_columns
from store.limits import MiB
from store.types import OFFSET_MAX

BATCH_BODY_BYTES_MAX = 1 * MiB
"""Of a raw batch that is checked in one turn of the event loop."""

_TARGET = re.compile(rf"/topics/{TOPIC}(?:/partitions/([0-9]{{1,9}}))?{ACKS}", re.ASCII)
_BODY = (
    b'{"offsets":[{"partition":%d,"offset":%d,"error_code":null,"error":null}],'
    b'"key_schema_id":null,"value_schema_id":null}'
)
_PARAMETERS = r"(?:[a-z_]+=[a-z0-9]+&)*offset=[0-9]+(?:&[a-z_]+=[a-z0-9]+)*"
_PULL = re.compile(rf"/topics/{TOPIC}/partitions/([0-9]{{1,9}})/records\?{_PARAMETERS}", re.ASCII)
_JSON = Format.JSON  # to ask an enum for its member costs as much as a call
_ROUTES = ("produce", "produce_partition")

_FIRST = re.compile(rb'\s{0,9}+\{\s{0,9}+"records"\s{0,9}+:\s{0,9}+\[\s{0,9}+\{\s{0,9}+"(?:key|value)"')
_LAST = re.compile(rb'"([^"\\]+)"\s{0,9}:\s{0,9}(?:"[^"\\]*"|[-+.\w]+)\s{0,9}\}\s{0,9}\]\s{0,9}\}\s{0,9}\Z')
_LAST_BYTES = 256
_VALUE = b'"value"'


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
    """JSON records in three formats; see `plain.RecordForm`. Of several those that are read in one turn of the event
    loop."""

    routes = _ROUTES
    bytes_max = STEP_BYTES
    read = staticmethod(partial(_read, is_batch=False))

    def __init__(self, limits: Limits) -> None:
        self._records_max = limits.records_per_request_max

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | Many | None:
        """See `plain.RecordForm`."""
        fmt: Format = asked.detail
        is_large = len(body) > BODY_BYTES_MAX
        if is_large and not may_be_columns(body):
            return None
        if is_large and fmt is _JSON:
            strings = strings_of(body, records_max=self._records_max)
            if strings is not None:
                return Many(strings, True, rendered_columns)
        envelope = parse_json(body)
        if fmt is _JSON and not is_large and (record := only_value(envelope)) is not None:
            return record, True, None
        records = open_envelope(envelope, records_max=self._records_max)
        if records.__class__ is not list or len(records) != 1:
            columns = columns_of(records, fmt, raw_keys=view.raw_keys)
            return None if columns is None else Many(columns, fmt is _JSON, rendered_columns)
        if is_large:
            return None
        record = plain_record(records[0], raw_keys=view.raw_keys) if fmt is _JSON else None
        if record is None:
            [record] = parse_records(records, fmt, raw_keys=view.raw_keys)
        return record, fmt is _JSON, None

    def answer(self, asked: Asked, record: ProduceRecord, detail: None, receipt: Receipt) -> bytes:
        """See `plain.RecordForm`."""
        return _BODY % receipt[:2]


def may_be_columns(body: bytes) -> bool:
    """False for a body that is known not to be several records of nothing but keys and values, by how it begins and
    ends: to parse it would be in vain."""
    if _FIRST.match(body) is None or body.find(_VALUE) == body.rfind(_VALUE):
        return False
    last = _LAST.search(body, len(body) - _LAST_BYTES)
    return last is None or last[1] in (b"key", b"value")


class V2Batches:
    """Raw batches; see `plain.BatchForm`."""

    routes = _ROUTES
    bytes_max = BATCH_BODY_BYTES_MAX
    read = staticmethod(partial(_read, is_batch=True))

    def answer(self, receipt: BatchReceipt) -> bytes:
        """See `plain.BatchForm`."""
        return orjson.dumps({"offsets": [batch_receipt_as_json(receipt)]})


class V2Pulls:
    """Pulls and long polls whose answer is sent whole; see `plain.CallForm`. To send in pieces, and to refuse are for
    the handler."""

    routes = ("fetch",)
    bytes_max = 0

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def read(self, message: RawRequestMessage) -> Asked | None:
        """See `plain.Form`."""
        match = _PULL.fullmatch(message.path)
        headers = message.headers
        if match is None or hdrs.CONTENT_LENGTH in headers:
            return None
        query = query_of(FetchQuery, message.url.query, self._gateway.limits)
        kind = form_of(headers, query.format, has_schemas=self._gateway.schemas is not None)
        if kind.is_lines or kind.schema_format is not None or query.filter is not None or query.timestamp is not None:
            return None
        return Asked(
            match[1], int(match[2]), None, "fetch", head_of("200 OK", kind.content_type),
            detail=(kind, query, headers.get(hdrs.ACCEPT_ENCODING)), permission=Permission.RECEIVE,
        )  # fmt: skip

    def begin(self, asked: Asked, body: bytes, caller: Caller, call: Call) -> None:
        """See `plain.CallForm`."""
        topic, partition, start = asked.topic, asked.partition, asked.offset
        assert partition is not None
        assert start is not None
        start = min(start, OFFSET_MAX)  # to be refused, as what is beyond
        call.serve(pulled(self._gateway, caller, topic, partition, start, *asked.detail))
