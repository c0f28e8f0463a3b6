"""The fast path: a POST of one plain JSON record, answered without aiohttp's tasks, requests and responses.

`Connection` shows each request to the fast path before aiohttp does anything with it. The fast path accepts only
requests that the normal path would answer with 200 by the same steps: everything about the request is in the lists
below, its caller is known and allowed, its record is neither delayed nor has an id. Any other request goes to aiohttp
untouched. A request whose append fails goes there too, and the normal path answers the error. So this file makes no
error answer, and a request with an unknown header is never taken.

The answer is the one that `produce.py` and `application.py` give, byte for byte but for the date and the request id.
"""

from __future__ import annotations

import re
from time import perf_counter
from typing import NamedTuple

from aiohttp import HttpVersion11
from aiohttp.helpers import rfc822_formatted_time
from aiohttp.http_parser import RawRequestMessage
from multidict import istr

from gateway.auth.access import Permission
from gateway.codec.records import Format, parse_envelope
from gateway.surfaces.http.answers import RequestIds
from gateway.surfaces.http.connection import FastRequest
from gateway.surfaces.http.context import Gateway, RouteStats
from gateway.surfaces.http.media import V2_TYPE, json_type, sent_format
from gateway.surfaces.http.origins import Origins
from gateway.surfaces.http.send_options import acks_named, name_of_acks
from store.limits import KiB
from store.types import Acks

BODY_BYTES_MAX = 16 * KiB
"""Larger bodies take the normal path; what the fast path saves would not show."""

TARGETS_MAX = 4096
"""Request targets remembered; then they are learnt again."""

_CONTENT_TYPE, _ACCEPT = istr("Content-Type"), istr("Accept")

_PLAIN = (
    "Host", "User-Agent", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "Accept-Language",
    "Authorization", "Connection", "X-Request-Id", "Cache-Control", "Pragma",
)  # fmt: skip
PLAIN_HEADERS = frozenset(form.encode() for name in _PLAIN for form in (name, name.lower(), name.upper()))
"""Headers whose meaning the fast path knows, as clients write them."""

_TARGET = re.compile(
    r"/topics/([A-Za-z0-9._-]{1,255})(?:/partitions/([0-9]{1,9}))?(?:\?acks=(written|flushed))?", re.ASCII
)
_BODY = (
    b'{"offsets":[{"partition":%d,"offset":%d,"error_code":null,"error":null}],'
    b'"key_schema_id":null,"value_schema_id":null}'
)

_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nMq-Acks: %b\r\n"
    b"Content-Length: %d\r\nDate: %b\r\nX-Request-Id: %b\r\n\r\n%b"
)


class _Target(NamedTuple):
    """What a request's first line asks for, and where its answer is counted."""

    topic: str
    partition: int | None
    acks: Acks | None
    stats: RouteStats


class FastPath:
    """The fast path of one server."""

    def __init__(self, gateway: Gateway, origins: Origins, request_ids: RequestIds) -> None:
        self._known_access = gateway.authenticator.known_access
        self._check_origin = origins.check
        self._producer = gateway.producer
        self._topic_of = gateway.routes_table.topic
        self._request_ids = request_ids
        self._stats = [gateway.stats.routes.setdefault(name, RouteStats()) for name in ("produce", "produce_partition")]
        self._bytes_max = min(BODY_BYTES_MAX, gateway.limits.body_bytes_max)
        self._records_max = gateway.limits.records_per_request_max
        self._targets: dict[str, _Target] = {}
        # Limits of rate and the log of requests are for the normal path.
        self._is_open = gateway.rates is None and not gateway.config.access_log

    def is_for(self, message: RawRequestMessage) -> bool:
        """Whether a request may be one for the fast path, by its first line and its headers' names."""
        return (
            self._is_open
            and message.method == "POST"
            and message.version == HttpVersion11
            and not (message.should_close or message.upgrade or message.chunked)
            and (message.path in self._targets or self._learn(message.path))
            and PLAIN_HEADERS.issuperset([name for name, _ in message.raw_headers])
        )

    def begin(self, message: RawRequestMessage, body: bytes) -> FastRequest | None:
        """Send the record of a request that `is_for` this lane; None when it must take the normal path after all."""
        started_s = perf_counter()
        if len(body) > self._bytes_max:
            return None
        headers = message.headers
        topic, partition, acks, stats = self._targets[message.path]
        try:
            self._check_origin(headers)
            access = self._known_access(headers)
            if access is None or not access.allows(Permission.SEND, topic=topic):
                return None
            content_type = json_type(headers.get(_ACCEPT, "*/*"), V2_TYPE)
            fmt = sent_format(headers.get(_CONTENT_TYPE, ""))
            if fmt is None:
                return None
            raw_keys = self._topic_of(topic).raw_keys
            records = parse_envelope(body, fmt, records_max=self._records_max, raw_keys=raw_keys)
            if len(records) != 1:
                return None
            begun = self._producer.begin(
                topic, records[0], partition=partition, json_values=fmt is Format.JSON, acks=acks
            )
        except Exception:  # nothing was stored: the normal path meets the same error, and answers it
            return None
        if begun is None:
            return None
        # A NamedTuple's own constructor takes three times as long.
        request_id = self._request_ids.of_headers(headers)
        return tuple.__new__(FastRequest, (begun, content_type, request_id, stats, started_s))

    def answer(self, fast_request: FastRequest) -> bytes:
        """The whole answer to a request whose append has ended. Raises what the append raises."""
        begun, content_type, request_id, stats, started_s = fast_request
        offset, reached = self._producer.finish(begun)
        body = _BODY % (begun.partition, offset)
        stats.answered(200, perf_counter() - started_s)
        return _ANSWER % (
            content_type.encode(), name_of_acks(reached).encode(), len(body), rfc822_formatted_time().encode(),
            request_id.encode(), body,
        )  # fmt: skip

    def _learn(self, path: str) -> bool:
        """Whether this is a request target of the fast path, which then remembers it."""
        match = _TARGET.fullmatch(path)
        if match is None:
            return False
        if len(self._targets) >= TARGETS_MAX:
            self._targets.clear()
        topic, partition, acks = match.groups()
        self._targets[path] = _Target(
            topic,
            None if partition is None else int(partition),
            acks_named(acks),
            self._stats[0 if partition is None else 1],
        )
        return True
