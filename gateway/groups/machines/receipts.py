"""Receipts: what a consumer shows to ack, give back or extend a record it was handed in queue mode.

A receipt says everything about the lease itself and is signed, so any node, also after a restart, can judge it without
having kept it. Text form: `r1.` and base64url, without padding, of 53 bytes, big-endian:

    0         1          5           9        17        21          29      37           53
    +---------+----------+-----------+--------+---------+-----------+-------+------------+
    | u8 1    | topic id | partition | offset | attempt | until ms  | epoch | signature  |
    | version | u32      | u32       | i64    | u32     | i64       | i64   | 16 bytes   |
    +---------+----------+-----------+--------+---------+-----------+-------+------------+

The signature is keyed BLAKE2b (RFC 7693) with 16 bytes, of the first 37 bytes and the group's name: the receipt of one
group is worth nothing in another. Whether the lease still holds is not this file's matter (see `leases`).
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Sequence
from hashlib import blake2b
from hmac import compare_digest
from typing import NamedTuple

from gateway.groups.machines.errors import IllegalRequest

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
PREFIX = "r1."
REMEMBERED_MAX = 20_000
"""Receipts that are remembered, in about 10 MB; when there are more, all are forgotten."""

_VERSION = 1
_BODY = struct.Struct(">BIIqIqq")
_SIGNATURE_BYTES = 16
_SIGNED = struct.Struct(f"{_BODY.format}{_SIGNATURE_BYTES}sB")
_CHARS = _SIGNED.size * 4 // 3
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_+/", b"+/??")  # "?" is in no alphabet: a receipt has one spelling of these
_TEXT_LENGTH = len(PREFIX) + _CHARS - 1

assert _BODY.size == 37
assert _SIGNED.size % 3 == 0


class Receipt(NamedTuple):
    """One lease of one record. `until_ms` is epoch ms; `epoch` is void after a reset of the group."""

    topic_id: int
    partition: int
    offset: int
    attempt: int
    until_ms: int
    epoch: int


class Signer:
    """Signs with the first key, accepts all: put a new key first, and drop the old one when its leases have ended."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        if not keys or not all(KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX for key in keys):
            raise ValueError(f"receipts need a key, and each key {KEY_BYTES_MIN} to {KEY_BYTES_MAX} bytes")
        self._keyed = [blake2b(digest_size=_SIGNATURE_BYTES, key=key) for key in keys]
        self._remembered: dict[str, tuple[str, Receipt]] = {}  # by text: group, receipt

    def sign(self, group: str, receipt: Receipt) -> str:
        """The text of a receipt."""
        return self.sign_all(group, [receipt])[0]

    def sign_all(self, group: str, receipts: Sequence[Receipt]) -> list[str]:
        """The texts of receipts, in order: much cheaper than one by one."""
        keyed, name = self._keyed[0], group.encode()
        signed = bytearray()
        for receipt in receipts:
            body = _BODY.pack(_VERSION, *receipt)
            hashed = keyed.copy()
            hashed.update(body + name)
            signed += body + hashed.digest() + b"\0"  # 54 bytes are 72 characters; the last one says nothing
        text = binascii.b2a_base64(signed, newline=False).translate(_URL_SAFE).decode()
        texts = [PREFIX + text[at : at + _CHARS - 1] for at in range(0, len(text), _CHARS)]
        remembered = self._remembered
        if len(remembered) + len(texts) > REMEMBERED_MAX:
            remembered.clear()
        for text, receipt in zip(texts, receipts, strict=True):
            remembered[text] = group, receipt
        return texts

    def check(self, group: str, text: str) -> Receipt:
        """The receipt in a text. Raises IllegalRequest unless this group's receipt was signed with one of the keys."""
        (receipt,) = self.check_all(group, [text])
        if receipt is None:
            raise IllegalRequest("this is not a receipt of this group")
        return receipt

    def check_all(self, group: str, texts: Sequence[str]) -> list[Receipt | None]:
        """The receipts in texts, in order: much cheaper than one by one. None for what is no receipt of this group."""
        take = self._remembered.pop
        known = [take(text, None) for text in texts]
        if all(one is not None and one[0] == group for one in known):
            return [one[1] for one in known if one is not None]
        return self._check_all(group, texts)

    def _check_all(self, group: str, texts: Sequence[str]) -> list[Receipt | None]:
        """By their signatures."""
        raw = _raw(texts)
        if raw is None:
            return [None] if len(texts) == 1 else [self._check_all(group, [text])[0] for text in texts]
        name = group.encode()
        receipts: list[Receipt | None] = []
        at = 0
        for _, topic_id, partition, offset, attempt, until_ms, epoch, signature, rest in _SIGNED.iter_unpack(raw):
            body = raw[at : at + _BODY.size] + name
            at += _SIGNED.size
            # Every key is tried in full, in constant time: how long it took says nothing about the signature.
            is_ours = False
            for keyed in self._keyed:
                hashed = keyed.copy()
                hashed.update(body)
                is_ours |= compare_digest(hashed.digest(), signature)
            is_ours = is_ours and rest == 0  # one spelling
            receipts.append(Receipt(topic_id, partition, offset, attempt, until_ms, epoch) if is_ours else None)
        return receipts


def _raw(texts: Sequence[str]) -> bytes | None:
    """The bytes of receipts, one behind the other; None when one of them is no text of ours."""
    for text in texts:
        if len(text) != _TEXT_LENGTH or not text.startswith(PREFIX):
            return None
    joined = "A".join([*[text[len(PREFIX) :] for text in texts], ""])
    try:
        return binascii.a2b_base64(joined.encode("ascii").translate(_STANDARD), strict_mode=True)
    except ValueError:
        return None
