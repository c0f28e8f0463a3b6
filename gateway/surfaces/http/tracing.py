"""W3C Trace Context through the queue: `traceparent` (and `tracestate`) of a send become headers of its records, and
come back with a record that is read raw. A malformed one is dropped, as the recommendation says: it is no reason to
refuse a record.
"""

from __future__ import annotations

import re

from aiohttp import web
from multidict import istr

from gateway.codec.records import ProduceRecord

TRACEPARENT = istr("traceparent")
TRACESTATE = istr("tracestate")
TRACESTATE_CHARS_MAX = 512
"""What every vendor must pass on; a longer one is dropped."""

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]{1,64})?")
_VISIBLE = re.compile(r"[ -~]+")

Headers = list[tuple[str, bytes | None]]


def trace_headers(request: web.BaseRequest) -> Headers:
    """The record headers for the trace of a request; usually none."""
    parent = request.headers.get(TRACEPARENT)
    if parent is None or not _TRACEPARENT.fullmatch(parent):
        return []
    headers: Headers = [("traceparent", parent.encode())]
    state = request.headers.get(TRACESTATE)
    if state and len(state) <= TRACESTATE_CHARS_MAX and _VISIBLE.fullmatch(state):
        headers.append(("tracestate", state.encode()))
    return headers


def traced(record: ProduceRecord, trace: Headers) -> ProduceRecord:
    """The record with the headers of a trace, unless it has a trace of its own."""
    if not trace or any(name.lower() == "traceparent" for name, _ in record.headers):
        return record
    return record._replace(headers=[*record.headers, *trace])
