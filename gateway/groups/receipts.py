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
import hmac
import struct
from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from gateway.groups.errors import IllegalRequest

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
PREFIX = "r1."
_VERSION = 1
_BODY = struct.Struct(">BIIqIqq")
_SIGNATURE_BYTES = 16
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_STANDARD = bytes.maketrans(b"-_+/", b"+/??")  # "?" is in no alphabet: a receipt has one spelling of these
_TEXT_LENGTH = len(PREFIX) + ((_BODY.size + _SIGNATURE_BYTES) * 4 + 2) // 3

assert _BODY.size == 37


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
        self._keys = tuple(keys)

    def sign(self, group: str, receipt: Receipt) -> str:
        """The text of a receipt."""
        body = _BODY.pack(_VERSION, *receipt)
        signed = binascii.b2a_base64(body + _signature(self._keys[0], group, body), newline=False)
        return PREFIX + signed.translate(_URL_SAFE)[:-1].decode()  # without the padding

    def check(self, group: str, text: str) -> Receipt:
        """The receipt in a text. Raises IllegalRequest unless this group's receipt was signed with one of the keys."""
        if len(text) == _TEXT_LENGTH and text.startswith(PREFIX):
            try:
                signed = binascii.a2b_base64(
                    text[len(PREFIX) :].encode("ascii").translate(_STANDARD) + b"=", strict_mode=True
                )
            except ValueError:
                signed = b""
            body, signature = signed[: _BODY.size], signed[_BODY.size :]
            # Every key is tried in full, in constant time: how long it took says nothing about the signature.
            is_ours = False
            for key in self._keys:
                is_ours |= hmac.compare_digest(_signature(key, group, body), signature)
            if is_ours:
                return Receipt._make(_BODY.unpack(body)[1:])
        raise IllegalRequest("this is not a receipt of this group")


def _signature(key: bytes, group: str, body: bytes) -> bytes:
    return blake2b(body + group.encode(), digest_size=_SIGNATURE_BYTES, key=key).digest()
