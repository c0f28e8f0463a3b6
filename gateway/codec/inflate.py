"""Bodies that clients compressed: gzip, deflate (zlib's format, and the bare one some clients send) and zstd.

Pure and incremental: bytes in, inflated bytes out, in pieces of bounded size. A few kilobytes can inflate to gigabytes,
so everything that comes out is counted against a budget and against what went in, piece by piece; no piece is larger
than PIECE_BYTES_MAX, whatever the input says.

Invariants
    I1  what came out never exceeds the budget, or RATIO_MAX times what went in (the first RATIO_FREE_BYTES are free)
    I2  a stream that ends early, goes on behind its end, or is damaged is refused; what it held never passes for whole
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Protocol

import zstandard

from store.limits import KiB, MiB

RATIO_MAX = 100
"""Largest ratio of inflated to compressed bytes."""

RATIO_FREE_BYTES = 64 * KiB
"""So much may come out at any ratio: small bodies of one repeated word are no bombs."""

PIECE_BYTES_MAX = 4 * MiB
"""Inflated at a time: some 10 ms, most of it for memory that is new to the process."""

_ZLIB_PIECE_BYTES = 256 * KiB
_ZSTD_WINDOW_BYTES_MAX = 8 * MiB  # what RFC 8878 asks every decoder to support
# A zstd block takes 4 bytes at least and inflates to 128 KiB at most, so a slice of the input bounds the piece.
_ZSTD_SLICE_BYTES = PIECE_BYTES_MAX // (128 * KiB) * 4


class BadEncoding(ValueError):
    """The bytes are not what their encoding says."""


class InflatedTooLarge(ValueError):
    """More would come out than is allowed. The message says which bound it is."""


class _Decoder(Protocol):
    """Decodes at most one piece at a time."""

    def decode(self, data: bytes) -> Iterator[bytes]: ...
    def is_whole(self) -> bool: ...


class Inflater:
    """Inflates one body. `feed` what arrives, `finish` at its end."""

    def __init__(self, encoding: str, *, bytes_max: int) -> None:
        """`encoding`: a name of ENCODINGS. `bytes_max`: the budget for what comes out."""
        self._decoder = ENCODINGS[encoding]()
        self._bytes_max = bytes_max
        self._in_bytes = 0
        self._out_bytes = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """What these bytes inflate to, in pieces. Raises BadEncoding, InflatedTooLarge."""
        self._in_bytes += len(data)
        allowed = min(self._bytes_max, max(self._in_bytes * RATIO_MAX, RATIO_FREE_BYTES))
        for piece in self._decoder.decode(data):
            self._out_bytes += len(piece)
            if self._out_bytes > allowed:
                piece = b""  # the error has this frame in its traceback, and may wait for the collector
                raise InflatedTooLarge(
                    f"the body inflates to more than {self._bytes_max} bytes"
                    if self._out_bytes > self._bytes_max
                    else f"the body inflates to more than {RATIO_MAX} times its size"
                )
            yield piece

    def finish(self) -> None:
        """Raises BadEncoding when the stream is not at its end."""
        if not self._decoder.is_whole():
            raise BadEncoding("the compressed body ends too early")


class _Zlib:
    """gzip (any number of members, as RFC 1952 allows) or zlib's own format."""

    def __init__(self, wbits: int) -> None:
        self._wbits = wbits
        self._stream = zlib.decompressobj(wbits)
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._stream.eof:
                if self._wbits != _GZIP:
                    raise BadEncoding("bytes behind the end of the compressed body")
                self._stream = zlib.decompressobj(self._wbits)
            self._begun = True
            try:
                piece = self._stream.decompress(data, _ZLIB_PIECE_BYTES)
            except zlib.error as error:
                raise BadEncoding(f"the body does not inflate: {error}") from None
            data = self._stream.unconsumed_tail or self._stream.unused_data
            if piece:
                yield piece

    def is_whole(self) -> bool:
        return self._begun and self._stream.eof


_GZIP = 31


class _Deflate:
    """What HTTP calls deflate: zlib's format, or, from clients that took the name literally, bare deflate."""

    def __init__(self) -> None:
        self._head = b""
        self._stream: _Zlib | None = None

    def decode(self, data: bytes) -> Iterator[bytes]:
        if self._stream is None:
            self._head += data
            if len(self._head) < 2:
                return
            # RFC 1950: the low four bits are 8 and the first two bytes are a multiple of 31.
            is_zlib = self._head[0] & 0x0F == 8 and int.from_bytes(self._head[:2], "big") % 31 == 0
            self._stream = _Zlib(15 if is_zlib else -15)
            data, self._head = self._head, b""
        yield from self._stream.decode(data)

    def is_whole(self) -> bool:
        return self._stream is not None and self._stream.is_whole()


class _Zstd:
    """zstd frames, one after the other."""

    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES_MAX)
        self._stream = self._decompressor.decompressobj()
        self._begun = False

    def decode(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            if self._stream.eof:
                self._stream = self._decompressor.decompressobj()
            self._begun = True
            part = data[at : at + _ZSTD_SLICE_BYTES]
            at += len(part)
            try:
                piece = self._stream.decompress(part)
            except zstandard.ZstdError as error:
                raise BadEncoding(f"the body does not inflate: {error}") from None
            if self._stream.eof:
                at -= len(self._stream.unused_data)
            if piece:
                yield piece

    def is_whole(self) -> bool:
        return self._begun and self._stream.eof


ENCODINGS: dict[str, Callable[[], _Decoder]] = {
    "gzip": lambda: _Zlib(_GZIP),
    "x-gzip": lambda: _Zlib(_GZIP),
    "deflate": _Deflate,
    "zstd": _Zstd,
}
"""Content codings that are accepted, by name."""
