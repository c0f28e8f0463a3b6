"""How two nodes know each other: both have the cluster's secret, and every request and answer carries a code that
cannot be made without it (keyed BLAKE2b over all that is said). Nothing is encrypted: where others can listen, nodes
speak over a private network or a Unix socket.

    head      sender's id · number · time · path · size     number rises with each request of one process
    request   the head's code · body                        a body is read only when its head is authentic
    answer    the request's code · status · body            so an answer belongs to one request and no other

Over a link, a connection that began as such a request, each frame has a code of a key that only this connection and
direction has, made of the secret and of a number that either end has chosen by chance, over the frame and how many came
before it: a frame cannot be sent again, there or elsewhere.

A request that was recorded and is sent again is refused: its number was seen, or is too far behind, or its time is. So
clocks of nodes may differ by CLOCK_SKEW_MS_MAX at most.

The secret may change while nodes run (`Secret.rotate`): what is sent has a code of the current one, and what comes may
have one of another one that is accepted as well. An answer has the code of the secret that its request had.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from store.types import Buffer

if TYPE_CHECKING:  # loaded where it is needed: it takes a tenth of a server's start
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SECRET_BYTES_MIN = 16
"""Of the file that holds the secret; 32 random ones are right."""

CLOCK_SKEW_MS_MAX = 30_000
WINDOW = 4096
"""Requests of one process that may overtake each other."""

SENDERS_MAX = 1_000
"""Processes whose numbers are remembered: a node that was started again is another one."""

CODE_BYTES = 32
GMAC_BYTES = 16
NONCE_BYTES = 16
NONCE_OF_FRAME_BYTES = 12


class NotAuthentic(Exception):
    """A request or an answer is not of a node of this cluster, or was sent before. The text is for the log."""


class Stamp(NamedTuple):
    """What a request says of itself beside path and body."""

    sender: str
    number: int
    time_ms: int

    @property
    def text(self) -> str:
        """As a header."""
        return f"{self.sender} {self.number} {self.time_ms}"


def parse_stamp(text: str) -> Stamp:
    """Raises NotAuthentic."""
    try:
        sender, number, time_ms = text.split(" ")
        return Stamp(sender, int(number), int(time_ms))
    except ValueError:
        raise NotAuthentic("a request without a stamp") from None


class Secret:
    """The cluster's secret. Raises ValueError for one that is too short."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the cluster's secret has at least {SECRET_BYTES_MIN} bytes, not {len(secret)}")
        self._key = blake2b(secret, digest_size=64).digest()  # secrets of any length
        self.current: Secret = self
        """The one to send with now. It does not change: a whole call is one secret's."""

        self.accepted: tuple[Secret, ...] = (self,)
        """Those by which a sender proves to be of the cluster now."""

        self._others: tuple[Secret, ...] = ()

    def rotate(self, secret: bytes, also: bytes | None) -> None:
        """From now on send with a secret, and accept another one as well; until `forget_former` also the one that was
        sent with before. Raises ValueError, and nothing changes."""
        current, others = Secret(secret), () if also is None else (Secret(also),)
        former, self.current, self.accepted = self.current, current, (current, *others)
        if all(former._key != each._key for each in self.accepted):
            self.accepted += (former,)
        self._others = others

    def forget_former(self) -> None:
        """Accept what `rotate` was told, and nothing else."""
        self.accepted = (self.current, *self._others)

    def proof(self) -> bytes:
        """Shows who has it that the other end has it too, where no third party can listen."""
        return self._code(b"mq-hello", b"", b"").encode()

    def head_code(self, stamp: Stamp, path: str, size: int) -> str:
        """The code of a request's head; `size`: bytes of its body."""
        return self._code(b"mq-head", f"{stamp.text} {path} {size}".encode(errors="surrogateescape"), b"")

    def request_code(self, head_code: str, body: Buffer) -> str:
        """The code of a whole request."""
        return self._code(b"mq-request", head_code.encode(), body)

    def answer_code(self, request_code: str, status: int, body: Buffer) -> str:
        """The code of an answer."""
        return self._code(b"mq-answer", f"{request_code} {status}".encode(), body)

    def is_same(self, other: Secret) -> bool:
        """Whether both were made of the same one."""
        return self._key == other._key

    def accepts(self, other: Secret) -> bool:
        """Whether a sender who has another secret proves to be of the cluster now."""
        return any(map(other.is_same, self.accepted))

    def link_codes(self, wish: str, nonce: str) -> tuple[FrameCodes, FrameCodes]:
        """The codes of a link's frames: of those that its maker sends, and of those that it is sent. `wish`: what its
        maker says, one of FRAME_CODES and a number chosen by chance; `nonce`: the other end's number. Raises
        ValueError."""
        kind, _, number = wish.partition(" ")
        if kind not in FRAME_CODES or len(number) != 2 * NONCE_BYTES:
            raise ValueError("a link that is not understood")
        said = f"{wish} {nonce}".encode()
        to, back = (bytes.fromhex(self._code(person, said, b"")) for person in (b"mq-link-to", b"mq-link-back"))
        return FrameCodes(to, kind), FrameCodes(back, kind)

    def _code(self, kind: bytes, head: bytes, body: Buffer) -> str:
        code = blake2b(len(head).to_bytes(4, "big") + head, key=self._key, digest_size=CODE_BYTES, person=kind)
        code.update(body)
        return code.hexdigest()


def check_code(expected: str, given: str) -> None:
    """Raises NotAuthentic."""
    if not hmac.compare_digest(expected.encode(), given.encode(errors="surrogateescape")):  # any octets of a header
        raise NotAuthentic("the code is of another secret, or of something else that was said")


FRAME_CODES = ("blake2b", "gmac")
"""How codes of frames are made: keyed BLAKE2b, or GMAC (AES-GCM that encrypts nothing), which takes a tenth of the time
where the processor has instructions for it."""


class FrameCodes:
    """The codes of the frames of one connection in one direction, in their order. `kind`: one of FRAME_CODES. No other
    connection or direction has its key, so the number of a frame is a nonce."""

    def __init__(self, key: bytes, kind: str) -> None:
        self._key = key
        self._gcm: AESGCM | None = None
        if kind == "gmac":
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._gcm = AESGCM(key)
        self.size = CODE_BYTES if self._gcm is None else GMAC_BYTES
        """Bytes of a code."""

        self._count = 0

    def next(self, part: Buffer) -> bytes:
        """The code of the next frame."""
        count = self._count.to_bytes(NONCE_OF_FRAME_BYTES, "big")
        self._count += 1
        if self._gcm is not None:
            return self._gcm.encrypt(count, b"", part)
        code = blake2b(count, key=self._key, digest_size=CODE_BYTES)
        code.update(part)
        return code.digest()

    def check(self, part: Buffer, given: bytes) -> None:
        """Raises NotAuthentic unless that is the code of the next frame."""
        if not hmac.compare_digest(self.next(part), given):
            raise NotAuthentic("the code of a frame is another one")


class SeenRequests:
    """Which requests were there already. Bounded: WINDOW numbers of SENDERS_MAX processes."""

    def __init__(self) -> None:
        self._senders: dict[str, tuple[int, int, int]] = {}  # highest number, bits of those below it, time of the last

    def check(self, stamp: Stamp, now_ms: int) -> None:
        """Note a request whose code was checked. Raises NotAuthentic when it was there before, or cannot be told."""
        if abs(now_ms - stamp.time_ms) > CLOCK_SKEW_MS_MAX:
            raise NotAuthentic(f"sent at {stamp.time_ms}, and it is {now_ms} here: set the clocks of the nodes")
        highest, seen, _ = self._senders.get(stamp.sender, (-1, 0, 0))
        if stamp.number > highest:
            seen = (seen << (stamp.number - highest)) & ((1 << WINDOW) - 1) if stamp.number - highest < WINDOW else 0
            highest = stamp.number
        bit = 1 << (highest - stamp.number) if highest - stamp.number < WINDOW else 0
        if not bit or seen & bit:
            raise NotAuthentic(f"request {stamp.number} of {stamp.sender} was there before")
        if stamp.sender not in self._senders and len(self._senders) >= SENDERS_MAX:
            self._forget(now_ms)
        self._senders[stamp.sender] = highest, seen | bit, now_ms

    def _forget(self, now_ms: int) -> None:
        """Forget who has been silent for so long that its requests are too old anyway; refuse when all are active."""
        silent = [sender for sender, (_, _, last) in self._senders.items() if now_ms - last > 2 * CLOCK_SKEW_MS_MAX]
        if not silent:
            raise NotAuthentic(f"{SENDERS_MAX} processes have sent requests within a minute")
        for sender in silent:
            del self._senders[sender]
