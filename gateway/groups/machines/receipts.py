"""Receipts: what a consumer shows to ack, give back or extend a record it was handed in queue mode.

A receipt says everything about the lease itself and is signed, so any node, also after a restart, can judge it without
having kept it. Records that are leased together, one behind the other and for the same attempt, are a run: it is signed
once, and the receipts of its records differ in their last part alone, the record's index in it. Text form: `r2.`,
base64url of 57 bytes, big-endian, `.`, and the index, a decimal number:

    0         1          5           9              17        21          29      37      41          57
    +---------+----------+-----------+--------------+---------+-----------+-------+-------+-----------+
    | u8 2    | topic id | partition | first offset | attempt | until ms  | epoch | count | signature |
    | version | u32      | u32       | i64          | u32     | i64       | i64   | u32   | 16 bytes  |
    +---------+----------+-----------+--------------+---------+-----------+-------+-------+-----------+

Of a light queue the form is `r3.`: the version is 3, offsets are the queue's, its name stands between the count and the
signature, and a zero between name and group in what is signed.

The signature is keyed BLAKE2b (RFC 7693) with 16 bytes, of the bytes before it and the group's name: the receipt of one
group is worth nothing in another. Whoever holds one receipt of a run can make the others of it: they went to the same
consumer, in one answer. Whether the lease still holds is not this file's matter (see `leases`).

Servers before this form made a receipt a record: `r1.`, and base64url, without padding, of the same fields but for the
count (version 1, the record's own offset). These are read as long as consumers may hold some, and are made no more.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from hmac import compare_digest
from itertools import chain
from typing import NamedTuple, overload

from gateway.groups.machines.errors import IllegalRequest
from store.limits import LIGHT_NAME_BYTES_MAX

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
PREFIX = "r2."
REMEMBERED_MAX = 20_000
"""Runs that are remembered, in about 10 MB; when there are more, all are forgotten."""

RUN_RECORDS_MAX = 1_000
"""Records of one run."""

_INDEXES = {str(index): index for index in range(RUN_RECORDS_MAX)}
_COMPARED = 64
"""Texts that are compared at a time: so many are looked at once more where they are no run."""

_new = tuple.__new__  # a NamedTuple's own constructor takes twice as long

_SIGNATURE_BYTES = 16
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_+/", b"+/??")  # "?" is in no alphabet: a receipt has one spelling of these


class _Form(NamedTuple):
    """How the signed part of a receipt is written."""

    version: int
    prefix: str
    body: struct.Struct
    has_name: bool = False

    def fits(self, text: str) -> bool:
        """Whether a text is as long as such a receipt."""
        signed_bytes = self.body.size + _SIGNATURE_BYTES
        chars = len(text) - len(self.prefix)
        if not self.has_name:
            return chars == _chars(signed_bytes)
        return _chars(signed_bytes + 1) <= chars <= _chars(signed_bytes + LIGHT_NAME_BYTES_MAX)


def _chars(byte_count: int) -> int:
    """Of base64 without padding."""
    return (byte_count * 4 + 2) // 3


_RUN = _Form(2, PREFIX, struct.Struct(">BIIqIqqI"))
_LIGHT = _Form(3, "r3.", _RUN.body, has_name=True)
_SINGLE = _Form(1, "r1.", struct.Struct(">BIIqIqq"))

assert _RUN.body.size == 41
assert _SINGLE.body.size == 37


class Receipt(NamedTuple):
    """One lease of one record, or those of a run: of `size` records, the first one at `offset`. `until_ms` is epoch ms;
    `epoch` is void after a reset of the group. `name`: of the light queue whose offset it is."""

    topic_id: int
    partition: int
    offset: int
    attempt: int
    until_ms: int
    epoch: int
    size: int = 1
    name: str = ""

    def each(self) -> list[Receipt]:
        """Those of its records."""
        topic_id, partition, offset, attempt, until_ms, epoch, size, name = self
        offsets = range(offset, offset + size)
        return [_new(Receipt, (topic_id, partition, at, attempt, until_ms, epoch, 1, name)) for at in offsets]


class RunReceipts(Sequence[str]):
    """The receipts of records of one run, one behind the other: there is a text for each only when somebody looks at
    it. `signed`: what they have in common; `first`: the index of the first one in the run."""

    __slots__ = ("first", "signed", "size")

    def __init__(self, signed: str, first: int, size: int) -> None:
        self.signed = signed
        self.first = first
        self.size = size

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> RunReceipts: ...
    def __getitem__(self, index: int | slice) -> str | RunReceipts:
        if isinstance(index, slice):
            first, end, step = index.indices(self.size)
            assert step == 1, "they lie one behind the other"
            return RunReceipts(self.signed, self.first + first, max(end - first, 0))
        return f"{self.signed}.{range(self.first, self.first + self.size)[index]}"

    def __iter__(self) -> Iterator[str]:
        begin = self.signed + "."
        return (f"{begin}{index}" for index in range(self.first, self.first + self.size))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunReceipts):
            return NotImplemented
        return (self.signed, self.first, self.size) == (other.signed, other.first, other.size)

    def __hash__(self) -> int:
        return hash((self.signed, self.first, self.size))

    def joined(self, separator: str) -> str:
        """All of them, with this between two."""
        return _indexes_joined(separator, self.first, self.size).replace(_SIGNED, self.signed)


_SIGNED = "\0"
"""Where the signed part stands in a form; in no separator, and in no receipt."""


@lru_cache(maxsize=128)  # of at most RUN_RECORDS_MAX texts each: 4 MB
def _indexes_joined(separator: str, first: int, size: int) -> str:
    return separator.join([f"{_SIGNED}.{index}" for index in range(first, first + size)])


def joined(receipts: Sequence[str], separator: str) -> str:
    """Receipts with this between two."""
    return receipts.joined(separator) if isinstance(receipts, RunReceipts) else separator.join(receipts)


def in_short(texts: Sequence[str], checked: Sequence[Receipt | None]) -> Sequence[str]:
    """The same texts; as those of a run, where `checked` (`Signer.check_runs` of them) says that they are one's."""
    if len(checked) != 1 or checked[0] is None or not 1 < checked[0].size == len(texts):
        return texts
    signed, _, index = texts[0].rpartition(".")
    return RunReceipts(signed, int(index), len(texts))


class Signer:
    """Signs with the first key, accepts all: put a new key first, and drop the old one when its leases have ended."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or not all(KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX for key in keys):
            raise ValueError(f"receipts need a key, and each key {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")
        self._keys = list(keys)
        self._keyed = [blake2b(digest_size=_SIGNATURE_BYTES, key=key) for key in keys]
        self._remembered: dict[str, tuple[str, Receipt]] = {}  # by signed text: group, run

    def accept(self, keys: Iterable[bytes]) -> None:
        """Accept these too from now on: those of nodes that groups came from."""
        for key in keys:
            if key not in self._keys:
                self._keys.append(key)
                self._keyed.append(blake2b(digest_size=_SIGNATURE_BYTES, key=key))

    def sign(self, group: str, receipt: Receipt) -> str:
        """The text of a receipt."""
        return self.sign_all(group, [receipt])[0]

    def sign_all(self, group: str, receipts: Sequence[Receipt]) -> Sequence[str]:
        """The texts of receipts, of each record of runs, in order. Those of one partition, with offsets that follow
        each other, cost little. A run has at most RUN_RECORDS_MAX records."""
        if len(receipts) == 1:
            return self._sign_run(group, receipts[0])
        runs: list[RunReceipts] = []
        first, count = None, 0
        for receipt in receipts:
            topic_id, partition, offset, attempt, until_ms, epoch, size, name = receipt
            if (
                first is not None
                and offset == first.offset + count
                and attempt == first.attempt
                and until_ms == first.until_ms
                and partition == first.partition
                and topic_id == first.topic_id
                and epoch == first.epoch
                and name == first.name
                and count + size <= RUN_RECORDS_MAX
            ):
                count += size
            else:
                if first is not None:
                    runs.append(self._sign_run(group, first._replace(size=count)))
                first, count = receipt, size
        if first is not None:
            runs.append(self._sign_run(group, first._replace(size=count)))
        return runs[0] if len(runs) == 1 else list(chain.from_iterable(runs))

    def _sign_run(self, group: str, run: Receipt) -> RunReceipts:
        form = _LIGHT if run.name else _RUN
        body, name = form.body.pack(form.version, *run[:7]), run.name.encode()
        signed = body + name + self._signature(self._keyed[0], group, body, name)
        text = form.prefix + binascii.b2a_base64(signed, newline=False).rstrip(b"=").translate(_URL_SAFE).decode()
        self._remember(text, group, run)
        return RunReceipts(text, 0, run.size)

    def check(self, group: str, text: str) -> Receipt:
        """The receipt in a text. Raises IllegalRequest unless this group's receipt was signed with one of the keys."""
        (receipt,) = self.check_all(group, [text])
        if receipt is None:
            raise IllegalRequest("this is not a receipt of this group")
        return receipt

    def check_all(self, group: str, texts: Sequence[str]) -> list[Receipt | None]:
        """The receipts in texts, in order. None for what is no receipt of this group."""
        return [
            receipt
            for run in self.check_runs(group, texts)
            for receipt in ((None,) if run is None else (run,) if run.size == 1 else run.each())
        ]

    def check_runs(self, group: str, texts: Sequence[str]) -> list[Receipt | None]:
        """As `check_all`, with one receipt for records that were leased together and stand in order."""
        if isinstance(texts, RunReceipts):
            run = self._run(group, texts.signed)
            if run is not None and texts.first + texts.size <= run.size:
                whole = texts.size == run.size
                return [run if whole else run._replace(offset=run.offset + texts.first, size=texts.size)]
        receipts: list[Receipt | None] = []
        known = ""  # the signed part of the text before
        run = None
        at = 0
        while at < len(texts):
            signed, _, index = texts[at].rpartition(".")
            if signed != known:
                known, run = signed, self._run(group, signed)
            if run is not None and (first := _INDEXES.get(index, run.size)) < run.size:
                count = _count_in_order(texts, at, signed, first, run.size)
                whole = count == run.size
                receipts.append(run if whole else run._replace(offset=run.offset + first, size=count))
                at += count
            else:
                receipts.append(self._single(group, texts[at]))
                at += 1
        return receipts

    def _run(self, group: str, signed: str) -> Receipt | None:
        remembered = self._remembered.get(signed)
        if remembered is not None and remembered[0] == group:
            return remembered[1]
        run = self._checked(group, signed, _LIGHT if signed.startswith(_LIGHT.prefix) else _RUN)
        if run is not None:
            self._remember(signed, group, run)
        return run

    def _single(self, group: str, text: str) -> Receipt | None:
        return self._checked(group, text, _SINGLE)

    def _checked(self, group: str, text: str, form: _Form) -> Receipt | None:
        """What a text says; None unless it was signed for the group with one of the keys."""
        if not text.startswith(form.prefix) or not form.fits(text):
            return None
        try:
            ascii_text = text[len(form.prefix) :].encode("ascii").translate(_STANDARD)
            raw = binascii.a2b_base64(ascii_text + b"=" * (-len(ascii_text) % 4), strict_mode=True)
        except ValueError:
            return None
        if binascii.b2a_base64(raw, newline=False).rstrip(b"=") != ascii_text:
            return None  # bits that say nothing: a receipt has one spelling
        body, name, signature = raw[: form.body.size], raw[form.body.size : -_SIGNATURE_BYTES], raw[-_SIGNATURE_BYTES:]
        # Every key is tried in full, in constant time: how long it took says nothing about the signature.
        is_ours = False
        for keyed in self._keyed:
            is_ours |= compare_digest(self._signature(keyed, group, body, name), signature)
        version, *fields = form.body.unpack(body)
        if not is_ours or version != form.version:
            return None
        return Receipt(*fields)._replace(name=name.decode())

    def _signature(self, keyed: blake2b, group: str, body: bytes, name: bytes) -> bytes:
        hashed = keyed.copy()
        hashed.update(body + (name + b"\0" if name else b"") + group.encode())
        return hashed.digest()

    def _remember(self, signed: str, group: str, run: Receipt) -> None:
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[signed] = group, run


def _count_in_order(texts: Sequence[str], start: int, signed: str, first: int, size: int) -> int:
    """How many texts from `start` on are those of records of one run of this size, the first one at `first` in it, each
    behind the one before. Most are: they are compared some at a time."""
    count = 0
    while True:
        at, index = start + count, first + count
        end = min(at + _COMPARED, at + size - index, len(texts))
        if at >= end or texts[end - 1] != f"{signed}.{index + end - at - 1}":
            break
        # As many texts, so as many line ends between them: none is within one where these are equal.
        if "\n".join(texts[at:end]) != _indexes_joined("\n", index, end - at).replace(_SIGNED, signed):
            break
        count += end - at
    while start + count < len(texts) and first + count < size and texts[start + count] == f"{signed}.{first + count}":
        count += 1
    return count
