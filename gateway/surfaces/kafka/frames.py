"""Cutting a stream of bytes into requests, and a request's header. Pure.

    frame     i32 size, then so many bytes
    request   i16 api key | i16 version | i32 correlation id | string client id (i16 length) | tagged fields, when the
              version is flexible | the message
    response  i32 size | i32 correlation id | a byte 0, when the version is flexible (never for ApiVersions) | the
              message

A size is believed only up to a bound, and memory is taken only for bytes that have come. A large frame of the size that
clients send at most, by default, is read to where it stays: memory is taken as it is filled. What is larger is put
together of pieces: of a hundred connections that stop in the middle, each with addresses for all of its frame, the
pages that one has filled are of no use to the others.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gateway.surfaces.kafka.apis import API_VERSIONS, APIS
from gateway.surfaces.kafka.schema import Malformed, Reader
from store.limits import KiB, MiB
from store.uninitialized import uninitialized

_SIZE = struct.Struct(">i")
_REQUEST = struct.Struct(">hhih")
_RESPONSE = struct.Struct(">ii")

REQUEST_BYTES_MIN = _REQUEST.size


SMALL_BYTES = 1 * KiB
"""Pieces of a frame below this size are put together as they come: each by itself would take many times its bytes."""

LARGE_BYTES = 64 * KiB
"""A frame from this size on has a buffer of its own, once so much of it is there."""

ROOM_BYTES_MAX = 1 * MiB + LARGE_BYTES
"""Of such a buffer: what clients send by default, 1 MiB, and its head."""


class Frames:
    """Cuts what arrives into frames of at most `bytes_max`, which may change. What waits is kept as it came, and cut
    frame by frame: a view of a small frame takes ten times its bytes.

    Either `_data` has at `_at` a whole frame, or a size that is none; or it is empty, and `_parts` has what there is,
    or the first `_have` bytes of `_large`.
    """

    __slots__ = ("_at", "_data", "_have", "_large", "_need", "_parts", "_view", "bytes_max", "has_one", "room")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._data: bytes | bytearray = b""
        self._view = memoryview(b"")
        self.has_one = False
        """Whether a frame can be taken, or refused: whether there are `_data`."""

        self._at = 0
        self._large = bytearray()
        self.room: memoryview | None = None
        """Where what comes next of a large frame is to be read to, to be told to `came`; None: it is to be fed."""

        self._parts: list[bytes | bytearray] = []  # of a frame that is not whole, its size first
        self._have = 0
        self._need = 0  # bytes of that frame, its size included

    @property
    def is_between(self) -> bool:
        """Whether nothing of a frame is waiting for the rest of it."""
        return self._have == 0

    def clear(self) -> None:
        """Forget what has come: it will not be read."""
        self._set(b"")
        self._let_go()

    def came(self, size: int) -> None:
        """So many bytes have been read to `room`."""
        assert self.room is not None
        self._have += size
        self.room = self.room[size:]
        if self._have == self._need:
            self._set(self._large)
            self._let_go()

    def feed(self, data: bytes) -> None:
        """What has arrived."""
        whole: bytes | bytearray = data
        if self._have:
            if self.room is not None:
                self._parts, self._large, self.room = [self._large[: self._have]], bytearray(), None
            self._add(data)
            if self._have < self._need:
                return
            whole = b"".join(self._parts)
            self._let_go()
        elif self.has_one:  # it came though nothing was asked for
            whole = self._data[self._at :] + data
        self._set(whole)
        self._keep_what_is_not_whole()

    def take(self) -> memoryview | None:
        """The next frame, without its size; None when there is none. Raises Malformed."""
        at, data = self._at, self._data
        if not self.has_one:
            return None
        (size,) = _SIZE.unpack_from(data, at)
        if not REQUEST_BYTES_MIN <= size <= self.bytes_max:
            raise Malformed(f"a request of {size} bytes; {REQUEST_BYTES_MIN} to {self.bytes_max} are accepted")
        at += _SIZE.size
        if at + size > len(data):  # too large when it came: `bytes_max` has grown
            self._keep_what_is_not_whole()
            return None
        frame = self._view[at : at + size]
        self._at = at + size
        if self._at == len(data):
            self._set(b"")
        else:
            self._keep_what_is_not_whole()
        return frame

    def _set(self, data: bytes | bytearray) -> None:
        self._data, self._view, self._at, self.has_one = data, memoryview(data), 0, bool(data)

    def _keep_what_is_not_whole(self) -> None:
        at, data = self._at, self._data
        left = len(data) - at
        self._need = _SIZE.size
        if left >= _SIZE.size:
            (size,) = _SIZE.unpack_from(data, at)
            self._need += size
            if size + _SIZE.size <= left or not REQUEST_BYTES_MIN <= size <= self.bytes_max:
                return
        if left:
            self._add(data[at:] if at else data)
        self._set(b"")

    def _add(self, data: bytes | bytearray) -> None:
        parts = self._parts
        self._have += len(data)
        if len(data) >= SMALL_BYTES:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))
        if LARGE_BYTES <= self._have < self._need <= ROOM_BYTES_MAX:
            self._large = uninitialized(self._need)
            self._large[: self._have] = b"".join(parts)
            self.room = memoryview(self._large)[self._have :]
            self._parts = []

    def _let_go(self) -> None:
        self._parts, self._large, self.room, self._have = [], bytearray(), None, 0


class Header(NamedTuple):
    """What comes before a request's message, which begins at `at`."""

    key: int
    version: int
    correlation_id: int
    client_id: str
    at: int


def read_header(frame: memoryview) -> Header:
    """The header of a request. Raises Malformed for one that is cut short, or of a request that is not served."""
    if len(frame) < REQUEST_BYTES_MIN:
        raise Malformed(f"a request of {len(frame)} bytes")
    key, version, correlation_id, length = _REQUEST.unpack_from(frame)
    at = _REQUEST.size
    if length > len(frame) - at:
        raise Malformed(f"a client id of {length} bytes at byte {at} of {len(frame)}")
    client_id = "" if length < 0 else str(frame[at : at + length], "utf-8", "replace")
    at += max(0, length)
    api = APIS.get(key)
    if api is None:
        raise Malformed(f"request {key} is not served")
    if key != API_VERSIONS and not api.min_version <= version <= api.max_version:
        raise Malformed(f"{api.name} version {version}; {api.min_version} to {api.max_version} are served")
    if version >= api.flexible:
        if at < len(frame) and not frame[at]:  # as nearly all have it: no tags
            at += 1
        else:
            reader = Reader(frame, at)
            reader.skip_tags()
            at = reader.at
    return Header(key, version, correlation_id, client_id, at)


def response_head(header: Header, body_bytes: int) -> bytes:
    """What comes before a response's message of so many bytes."""
    if header.version >= APIS[header.key].flexible and header.key != API_VERSIONS:
        return _RESPONSE.pack(body_bytes + 5, header.correlation_id) + b"\0"
    return _RESPONSE.pack(body_bytes + 4, header.correlation_id)
