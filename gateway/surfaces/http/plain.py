"""What the surfaces tell the fast path (`fast_path.py`) of their plain requests: which they are, how their records are
read, and what is answered. The answers are, byte for byte, those of their handlers; a test of each compares.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol

from aiohttp import HttpVersion11, hdrs
from aiohttp.http_parser import RawRequestMessage

from gateway.api.producer import BatchReceipt, Receipt, StoredBatch
from gateway.auth.access import Permission
from gateway.codec.columns import Columns
from gateway.codec.records import ProduceRecord
from gateway.routing.base import TopicView
from gateway.surfaces.http.caller import Caller
from store.limits import KiB
from store.types import Acks, Buffer

BODY_BYTES_MAX = 16 * KiB
"""Of a request with one record. Larger ones take the normal path; what the fast path saves would not show."""

_PLAIN = (
    "Host", "User-Agent", "Content-Type", "Content-Length", "Accept", "Accept-Encoding", "Accept-Language",
    "Authorization", "Connection", "X-Request-Id", "Cache-Control", "Pragma", "Sec-Fetch-Mode",
)  # fmt: skip
PLAIN_HEADERS = frozenset(form.encode() for name in _PLAIN for form in (name, name.lower(), name.upper()))
"""Headers whose meaning the fast path knows, as clients write them."""

TOPIC = "([A-Za-z0-9._-]{1,255})"
"""A topic in the pattern of a target, as nearly all are written: nothing escaped."""

ACKS = r"(?:\?acks=(written|flushed))?"


class Asked(NamedTuple):
    """What the head of a plain request asks for."""

    topic: str
    """Empty where the target names none."""

    partition: int | None
    acks: Acks | None
    route: str
    """The name under which it is counted."""

    head: bytes
    """What its answer begins with: status, type."""

    detail: Any = None
    """What its form has to know further."""

    status: int = 200
    is_streamed: bool = False
    """Whether the answer is one chunk, of a stream that does not name the level reached."""

    is_repeatable: bool = True
    """Whether equal heads are to be expected, so that it is worth remembering."""

    group: str | None = None
    permission: Permission = Permission.SEND
    """Needed for the topic and the group of the target, as the route table has it."""

    action: str | None = None
    """What the trail calls it, as the route table has it."""

    offset: int | None = None
    """Where a pull begins; no part of what is remembered of a head."""


Sent = tuple[ProduceRecord, bool, Any]
"""The record of a request, whether its key and value are JSON (as `store.types.Append` has it), and what its answer has
to know further."""


class Many(NamedTuple):
    """Several records of a request."""

    columns: Columns
    json_values: bool
    """As `Sent` has it."""

    answer: Callable[[Sequence[StoredBatch], int], bytes]
    """The body of the answer to so many records."""


class Form(Protocol):
    """The plain requests of one route, or of some that are alike."""

    @property
    def routes(self) -> tuple[str, ...]:
        """The names of the routes."""
        ...

    @property
    def bytes_max(self) -> int:
        """Of a body."""
        ...

    def read(self, message: RawRequestMessage) -> Asked | None:
        """What a head with plain headers asks for; None when it is not for this form. Raises RequestError for one that
        is to be refused."""
        ...


class RecordForm(Form, Protocol):
    """Of requests with one record: those of one turn that go one way are one batch. Some forms know requests with
    several, which are sent each by itself."""

    def sent(self, asked: Asked, body: bytes, view: TopicView) -> Sent | Many | None:
        """The record of a body; None when only the handler knows what to do with it. Raises RequestError for one that
        is to be refused."""
        ...

    def answer(self, asked: Asked, record: ProduceRecord, detail: Any, receipt: Receipt) -> bytes:
        """The body of the answer; `detail` is of `sent`."""
        ...


class BatchForm(Form, Protocol):
    """Of requests whose body is one raw batch."""

    def answer(self, receipt: BatchReceipt) -> bytes:
        """The body of the answer."""
        ...


class Whole(NamedTuple):
    """An answer that has headers of its own, as lines with their ends, and whose body may lie in several buffers. Its
    form has had it held by the caller's allowance."""

    lines: bytes
    body: Sequence[Buffer]


Text = bytes | Whole
"""The body of an answer, or more of it."""


class Call(Protocol):
    """One request of a `CallForm`, until its answer. One of the two is called, once."""

    def answer(self, text: Text | None) -> None:
        """Send the body of its answer; not in the turn of the event loop in which the request came. None: the handler
        is to do it. It begins anew, so what was done up to here is undone, or does no harm when it is done twice.
        Raises nothing."""
        ...

    def serve(self, work: Coroutine[Any, Any, Text | None]) -> None:
        """Have a task find the answer. An error of it counts as None."""
        ...


class CallForm(Form, Protocol):
    """Of requests that take something else than one append."""

    def begin(self, asked: Asked, body: bytes, caller: Caller, call: Call) -> None:
        """Begin to do it; `call` is answered later. An error that is raised is for the handler to answer."""
        ...


def is_plain(message: RawRequestMessage) -> bool:
    """Whether nothing about a head is of interest but its target and the values of plain headers."""
    return (
        message.method in (hdrs.METH_POST, hdrs.METH_PUT, hdrs.METH_GET)
        and message.version == HttpVersion11
        and not (message.should_close or message.upgrade or message.chunked)
        and PLAIN_HEADERS.issuperset([name for name, _ in message.raw_headers])
    )


def head_of(status: str, content_type: str, retry_after: str | None = None) -> bytes:
    """What an answer begins with."""
    more = "" if retry_after is None else f"Retry-After: {retry_after}\r\n"
    return f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n{more}".encode()
