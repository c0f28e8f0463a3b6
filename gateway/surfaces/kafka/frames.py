"""Cutting a stream of bytes into requests, and a request's header. Pure.

    frame     i32 size, then so many bytes
    request   i16 api key | i16 version | i32 correlation id | string client id (i16 length) | tagged fields, when the
              version is flexible | the message
    response  i32 size | i32 correlation id | a byte 0, when the version is flexible (never for ApiVersions) | the
              message

A size is believed only up to a bound, and memory is taken only for bytes that have come.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from gateway.surfaces.kafka.apis import API_VERSIONS, APIS
from gateway.surfaces.kafka.schema import Malformed, Reader

_SIZE = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_REQUEST = struct.Struct(">hhi")
_RESPONSE = struct.Struct(">ii")

REQUEST_BYTES_MIN = _REQUEST.size + _SHORT.size


class Frames:
    """Cuts what arrives into frames of at most `bytes_max`, which may change."""

    __slots__ = ("_have", "_need", "_parts", "bytes_max")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._parts: list[bytes] = []  # of a frame that is not whole, its size first
        self._have = 0
        self._need = 0  # bytes of that frame, its size included; 0: not known yet

    @property
    def is_between(self) -> bool:
        """Whether nothing of a frame is waiting for the rest of it."""
        return self._have == 0

    def clear(self) -> None:
        """Forget what has come of a frame: nobody waits for the rest."""
        self._parts, self._have, self._need = [], 0, 0

    def feed(self, data: bytes) -> Iterator[memoryview]:
        """The frames that are whole now, without their sizes: views of bytes that nobody changes. Raises Malformed."""
        if self._have:
            self._parts.append(data)
            self._have += len(data)
            if self._have < self._need:
                return
            data = b"".join(self._parts)
            self._parts, self._have, self._need = [], 0, 0
        view, at, end = memoryview(data), 0, len(data)
        while end - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            if not REQUEST_BYTES_MIN <= size <= self.bytes_max:
                raise Malformed(f"a request of {size} bytes; {REQUEST_BYTES_MIN} to {self.bytes_max} are accepted")
            if size > end - at - _SIZE.size:
                self._need = size + _SIZE.size
                break
            at += _SIZE.size + size
            yield view[at - size : at]
        if at < end:
            self._parts, self._have = [data[at:] if at else data], end - at
            self._need = self._need or _SIZE.size


class Header(NamedTuple):
    """What comes before a request's message, which begins at `at`."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    at: int


def read_header(frame: memoryview) -> Header:
    """The header of a request. Raises Malformed for one that is cut short, or of a request that is not served."""
    reader = Reader(frame)
    key, version, correlation_id = _REQUEST.unpack(reader.take(_REQUEST.size))
    api = APIS.get(key)
    length = reader.unpack(_SHORT)
    client_id = "" if length < 0 else reader.take(length).decode("utf-8", "replace")
    if api is None:
        raise Malformed(f"request {key} is not served")
    if key != API_VERSIONS and not api.min_version <= version <= api.max_version:
        raise Malformed(f"{api.name} version {version}; {api.min_version} to {api.max_version} are served")
    if version >= api.flexible:
        reader.skip_tags()
    return Header(key, version, correlation_id, client_id, reader.at)


def response_head(header: Header, body_bytes: int) -> bytes:
    """What comes before a response's message of so many bytes."""
    if header.version >= APIS[header.key].flexible and header.key != API_VERSIONS:
        return _RESPONSE.pack(body_bytes + 5, header.correlation_id) + b"\0"
    return _RESPONSE.pack(body_bytes + 4, header.correlation_id)
