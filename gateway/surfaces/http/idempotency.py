"""What a request says about repeats of itself: the headers Idempotency-Key, and Mq-Producer with Mq-Sequence.

    Idempotency-Key: "b3c1..."      any POST that sends records; a quoted string as in RFC 8941, or the bare characters
    Mq-Producer: spark-7f3a/3       a producer's name, and the number it gives to this batch for this partition;
    Mq-Sequence: 8388608            numbers rise, gaps are allowed

A key belongs to one caller, method and path (with its parameters): the same key elsewhere is another one. The
fingerprint is of the body as it came, its content type, the query and the headers of a delay; a repeat with another one
is refused, because its sender would take the old answer for the new content's. A producer's name belongs to its caller.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Protocol

from aiohttp import hdrs, web
from multidict import CIMultiDict, istr

from gateway.api.producer import RequestIdentity
from gateway.errors import bad_request, invalid
from gateway.settings.limits import IDEMPOTENCY_KEY_BYTES_MAX, PRODUCER_NAME_BYTES_MAX
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.send_options import DELAY_HEADERS
from store.types import FINGERPRINT_BYTES, ID_BYTES, NO_FINGERPRINT, ProducerSequence

IDEMPOTENCY_KEY = istr("Idempotency-Key")
IDEMPOTENT_REPLAYED = istr("Idempotent-Replayed")
MQ_PRODUCER = istr("Mq-Producer")
MQ_SEQUENCE = istr("Mq-Sequence")

SEQUENCE_MAX = 2**63 - 1

_QUOTED = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_BARE = re.compile(r"[!#-~]+")
_NAME = re.compile(r"[ -~]+")
_LENGTH = struct.Struct(">I")


class Answered(Protocol):
    """A receipt."""

    @property
    def duplicate(self) -> bool:
        """Whether it was stored by an earlier request."""
        ...


def request_identity(request: web.Request, topic_id: int, body: bytes | None) -> RequestIdentity | None:
    """The identity of a send with an Idempotency-Key; None without the header.

    `body` None: it is not known yet, so repeats are not compared. Raises RequestError 400 for a header that is no key.
    """
    key = _single(request, IDEMPOTENCY_KEY)
    if key is None:
        return None
    text = key.strip()
    if quoted := _QUOTED.fullmatch(text):
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    elif not _BARE.fullmatch(text):
        raise bad_request(f'{IDEMPOTENCY_KEY}: must be a string in quotes, such as "b3c1", or visible ASCII characters')
    if not 1 <= len(text) <= IDEMPOTENCY_KEY_BYTES_MAX:
        raise invalid(f"{IDEMPOTENCY_KEY}: has {len(text)} characters; 1 to {IDEMPOTENCY_KEY_BYTES_MAX} are accepted")
    scope = (access_of(request).principal, str(topic_id), request.method, request.path, text)
    fingerprint = NO_FINGERPRINT
    if body is not None:
        delays = [
            f"{header}: {request.headers[header]}" for header in DELAY_HEADERS.values() if header in request.headers
        ]
        about = (request.headers.get(hdrs.CONTENT_TYPE, ""), request.query_string, *delays)
        texts = [text.encode(errors="surrogateescape") for text in about]  # a header may have any octets
        fingerprint = _hash(FINGERPRINT_BYTES, b"mq-content", (*texts, body))
    return RequestIdentity(_hash(ID_BYTES, b"mq-request", map(str.encode, scope)), fingerprint)


def command_identity(principal: str, topic_id: int, key: str) -> RequestIdentity:
    """The identity of a socket's `produce` with an `idempotency_key`. Repeats are not compared: their sender is a
    client that sends the same frame again."""
    scope = (principal, str(topic_id), "produce", key)
    return RequestIdentity(_hash(ID_BYTES, b"mq-command", map(str.encode, scope)), NO_FINGERPRINT)


def producer_sequence(request: web.Request) -> ProducerSequence | None:
    """The number that a named producer gave to this batch; None without the headers.

    Raises RequestError when one of them is missing or is not what it should be, or a key is there as well.
    """
    name, number = _single(request, MQ_PRODUCER), _single(request, MQ_SEQUENCE)
    if name is None and number is None:
        return None
    if name is None or number is None:
        raise invalid(f"{MQ_PRODUCER} and {MQ_SEQUENCE} are sent together or not at all")
    if IDEMPOTENCY_KEY in request.headers:
        raise invalid(f"{IDEMPOTENCY_KEY} and {MQ_SEQUENCE} exclude each other")
    name, number = name.strip(), number.strip()
    if not _NAME.fullmatch(name):
        raise bad_request(f"{MQ_PRODUCER}: must be printable ASCII characters")
    if len(name) > PRODUCER_NAME_BYTES_MAX:
        raise invalid(f"{MQ_PRODUCER}: has {len(name)} characters; the limit is {PRODUCER_NAME_BYTES_MAX}")
    if not (number.isascii() and number.isdigit()) or len(number) > 19 or int(number) > SEQUENCE_MAX:
        raise bad_request(f"{MQ_SEQUENCE}: must be an integer from 0 to {SEQUENCE_MAX}")
    scope = (access_of(request).principal, name)
    return ProducerSequence(_hash(ID_BYTES, b"mq-producer", map(str.encode, scope)), int(number))


def mark_replayed(headers: CIMultiDict[str], receipts: Iterable[Answered]) -> None:
    """Say so in an answer's headers when every record of the request had been stored before."""
    if all(receipt.duplicate for receipt in receipts):
        headers[IDEMPOTENT_REPLAYED] = "true"


def _single(request: web.Request, name: istr) -> str | None:
    values = request.headers.getall(name, [])
    if len(values) > 1:
        raise bad_request(f"{name}: given more than once")
    return values[0] if values else None


def _hash(size: int, purpose: bytes, parts: Iterable[bytes]) -> bytes:
    """A hash of parts, told apart by their lengths, for one purpose."""
    digest = blake2b(digest_size=size, person=purpose)
    for part in parts:
        digest.update(_LENGTH.pack(len(part)))
        digest.update(part)
    return digest.digest()
