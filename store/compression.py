"""lz4 and snappy as Kafka's producers write them, unpacked within a budget of bytes. Pure.

    lz4      one LZ4 frame
    snappy   one raw block (librdkafka), or blocks in the frame of snappy-java (Java, Python, Go clients):
             82 "SNAPPY" 00 · version i32 · compatible version i32 · then for each block its length i32, and the block

A budget is checked before memory is taken. Bytes behind the end are refused: some decoders would ignore them, others
not.
"""

from __future__ import annotations

import struct

import cramjam

from store.types import Buffer

_JAVA_MAGIC = b"\x82SNAPPY\x00"
_JAVA_HEADER_BYTES = 16
_LENGTH = struct.Struct(">i")

_LZ4_MAGIC = 0x184D2204
_LZ4_WORD = struct.Struct("<I")
_BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _DICTIONARY = 0x10, 0x08, 0x04, 0x01
_PLAIN_BLOCK = 0x80000000

FIRST_BUDGET_FACTOR = 8
"""lz4 does not say how large its content is: most of it shrinks to an eighth at best, and is tried with that first."""


class NotUnpacked(ValueError):
    """The bytes are not what the codec makes."""


class TooLarge(ValueError):
    """The content exceeds the budget."""


def unpack_lz4(packed: Buffer, budget: int) -> bytes | bytearray:
    """The content of an LZ4 frame. Raises NotUnpacked, TooLarge."""
    if _frame_end(packed) != len(packed):
        raise NotUnpacked("lz4: bytes behind the frame")
    for size in (min(budget, FIRST_BUDGET_FACTOR * len(packed)), budget):
        content = bytearray(size)
        try:
            return content[: cramjam.lz4.decompress_into(packed, content)]
        except cramjam.DecompressionError as error:
            if "whole buffer" not in str(error):  # all else is damage
                raise NotUnpacked(f"lz4: {error}") from error
    raise TooLarge


def _frame_end(packed: Buffer) -> int:
    """Where the frame at the start of the bytes ends. Raises NotUnpacked."""
    try:
        if _LZ4_WORD.unpack_from(packed)[0] != _LZ4_MAGIC:
            raise NotUnpacked("lz4: not a frame")
        flags = packed[4]
        at = 7 + 8 * bool(flags & _CONTENT_SIZE) + 4 * bool(flags & _DICTIONARY)
        while size := _LZ4_WORD.unpack_from(packed, at)[0]:
            at += 4 + (size & ~_PLAIN_BLOCK) + 4 * bool(flags & _BLOCK_CHECKSUM)
    except (struct.error, IndexError) as error:
        raise NotUnpacked("lz4: a frame without an end") from error
    return at + 4 + 4 * bool(flags & _CONTENT_CHECKSUM)


def unpack_snappy(packed: Buffer, budget: int) -> bytes:
    """The content of snappy blocks. Raises NotUnpacked, TooLarge."""
    view = memoryview(packed)
    if view[: len(_JAVA_MAGIC)] != _JAVA_MAGIC:
        return _unpack_block(view, budget)
    at, parts = _JAVA_HEADER_BYTES, []
    while at < len(view):
        if len(view) - at < _LENGTH.size:
            raise NotUnpacked("snappy: a block without an end")
        (size,) = _LENGTH.unpack_from(view, at)
        at += _LENGTH.size
        if not 0 < size <= len(view) - at:
            raise NotUnpacked("snappy: a block without an end")
        parts.append(_unpack_block(view[at : at + size], budget))
        budget -= len(parts[-1])
        at += size
    return b"".join(parts)


def _unpack_block(block: memoryview, budget: int) -> bytes:
    try:
        if cramjam.snappy.decompress_raw_len(block) > budget:
            raise TooLarge
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise NotUnpacked(str(error)) from error
