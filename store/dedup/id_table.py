"""Numbers by ids of 16 bytes, without an object for either. Pure.

A hash table with chains, each of them one run of bytes: 24 for an id and its number, where a dict takes 64 bytes for an
id, 32 for its number and 30 for both's place. A chain of some 30 is searched as bytes are for a substring; what is
found across two entries is none. Numbers only grow, so the oldest entries of a chain are its first, and go together.

An id's chain is chosen by its hash as the interpreter makes it, with a key of this process (SipHash, PEP 456): senders
choose ids, and whoever knew their chains could have them all in one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import partial

from store.types import ID_BYTES, NO_ID

_ENTRY_BYTES = ID_BYTES + 8
_PER_CHAIN = 32
SWEPT_AT_ONCE = 1_024
"""Chains that are looked through for what can go: below a millisecond when nothing does, up to 7 ms when half of each
does, of a table with a million ids."""


class IdTable:
    """Made for `ids_max` ids: with more it is slower. An id that is put several times has several numbers."""

    def __init__(self, ids_max: int) -> None:
        self._mask = (1 << (ids_max // _PER_CHAIN).bit_length()) - 1
        self._empty = bytearray()
        self._chains = [self._empty] * (self._mask + 1)
        self._swept = 0

    @property
    def sweep_count(self) -> int:
        """Sweeps after which all chains were looked through."""
        return -(-len(self._chains) // SWEPT_AT_ONCE)

    def put(self, ids: Sequence[bytes], numbers: Iterable[int]) -> None:
        """Add ids with a number each, none below one that is here; NO_ID is passed over."""
        chains, mask = self._chains, self._mask
        for id_, number in zip(ids, numbers, strict=True):
            if id_ == NO_ID:
                continue
            slot = hash(id_) & mask
            entry = id_ + number.to_bytes(8)
            if chain := chains[slot]:
                chain += entry
            else:
                chains[slot] = bytearray(entry)

    def find(self, ids: Sequence[bytes]) -> Sequence[tuple[int, int]]:
        """The index of each id that is here, and its number; several numbers in the order in which they were put."""
        if not ids:
            return ()
        slots = map(self._mask.__and__, map(hash, ids))
        first_found = list(map(bytearray.find, map(self._chains.__getitem__, slots), ids))
        if max(first_found) < 0:
            return ()
        found: list[tuple[int, int]] = []
        for index, at in enumerate(first_found):
            chain = self._chains[hash(ids[index]) & self._mask] if at >= 0 else self._empty
            while at >= 0:
                if at % _ENTRY_BYTES == 0:
                    found.append((index, int.from_bytes(chain[at + ID_BYTES : at + _ENTRY_BYTES])))
                at = chain.find(ids[index], at + 1)
        return found

    def sweep(self, before: int) -> None:
        """Let go of ids whose numbers are lower, in the next SWEPT_AT_ONCE chains."""
        end = min(self._swept + SWEPT_AT_ONCE, len(self._chains))
        for slot in range(self._swept, end):
            chain = self._chains[slot]
            if not chain or _number(chain, 0) >= before:
                continue
            count = bisect_left(range(len(chain) // _ENTRY_BYTES), before, key=partial(_number, chain))
            if count * _ENTRY_BYTES == len(chain):
                self._chains[slot] = self._empty
            else:
                del chain[: count * _ENTRY_BYTES]
        self._swept = end % len(self._chains)


def _number(chain: bytearray, entry: int) -> int:
    at = entry * _ENTRY_BYTES + ID_BYTES
    return int.from_bytes(chain[at : at + 8])
