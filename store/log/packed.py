"""Rows of fixed size kept as the bytes they came in, and made into objects when looked at.

The entries in memory carry hundreds of thousands of delays and sources. As tuples of their own each costs a hundred
bytes, and Python's garbage collector walks them all, again and again: pauses of more than a tenth of a second. Packed,
an entry's rows are one object, which the collector does not look into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import Generic, SupportsIndex, TypeVar, overload

from store.types import Buffer

T_co = TypeVar("T_co", covariant=True)


class Packed(Sequence[T_co], Generic[T_co]):
    """A sequence of rows of `layout`, each read by `make`. Equal to any sequence of equal rows."""

    __slots__ = ("_block", "_layout", "_make")

    def __init__(self, block: Buffer, layout: Struct, make: Callable[[Iterable[int]], T_co]) -> None:
        assert len(block) % layout.size == 0
        self._block = bytes(block)
        self._layout = layout
        self._make = make

    @property
    def block(self) -> bytes:
        """The rows' bytes, end to end."""
        return self._block

    def row_bytes(self, index: int) -> bytes:
        """The bytes of a row; the garbage collector does not look at them either."""
        size = self._layout.size
        return self._block[index * size : (index + 1) * size]

    def rows(self, indexes: Iterable[int]) -> Packed[T_co]:
        """Some of the rows, in this order."""
        return Packed(b"".join(map(self.row_bytes, indexes)), self._layout, self._make)

    def __len__(self) -> int:
        return len(self._block) // self._layout.size

    def __iter__(self) -> Iterator[T_co]:
        return map(self._make, self._layout.iter_unpack(self._block))

    @overload
    def __getitem__(self, index: SupportsIndex) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T_co]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> T_co | Sequence[T_co]:
        size = self._layout.size
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("packed rows are cut in steps of 1")
            return Packed(self._block[start * size : max(start, stop) * size], self._layout, self._make)
        number = range(len(self))[index]
        return self._make(self._layout.unpack_from(self._block, number * size))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(_same, self, other))

    __hash__ = None  # type: ignore[assignment]


def _same(one: object, other: object) -> bool:
    return one == other
