"""Heads of requests that aiohttp's parser has read before, with what they came to.

Equal bytes parse equally: whoever finds a head here knows the parser's answer, so there is no second grammar of HTTP.
Whatever may change between two equal requests (rights, topics, quotas) is no part of what is remembered.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from store.limits import KiB

HEADS_MAX = 1024
"""Heads remembered; the oldest is forgotten first. Each holds some 3 KiB."""

HEAD_BYTES_MAX = 2 * KiB
"""Longer heads are not remembered."""

END = b"\r\n\r\n"

Meaning = TypeVar("Meaning")


class _Head(NamedTuple, Generic[Meaning]):
    length: int
    meaning: Meaning


class HeadMemo(Generic[Meaning]):
    """What the heads of requests mean. `HEADS_MAX` times `HEAD_BYTES_MAX` bounds its bytes."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head[Meaning]] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, data: bytes) -> tuple[Meaning, bytes] | None:
        """The meaning of the head and the body, when `data` is one whole request with a head that is remembered."""
        end = data.find(END) + len(END)
        head = self._heads.get(data[:end])
        if head is None or len(data) != end + head.length:
            return None
        return head.meaning, data[end:]

    def remember(self, head: bytes, length: int, meaning: Meaning) -> None:
        """Remember a head that the parser has read, with a body of `length` bytes and nothing else."""
        if len(head) > HEAD_BYTES_MAX:
            return
        if len(self._heads) >= HEADS_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[head] = _Head(length, meaning)

    def clear(self) -> None:
        """Forget all: heads hold credentials."""
        self._heads.clear()
