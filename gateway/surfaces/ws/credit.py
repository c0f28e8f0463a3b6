"""How much a subscription may be sent: credit in messages and, if asked for, in bytes. Pure.

`window` is what the client has granted, `in_flight` what was sent and not returned; the difference may be sent.

    window 100, in_flight 0   sent(30)      in_flight 30, 70 left
    automatic:                returned(30)  in_flight 0, 100 left    given to the transport, or settled (queue mode)
                              widened(50)   window 150               for good
    manual:                   permitted(50) in_flight 0, window 120  what was sent is returned first, then more
    a connection is lost:     unsent(30)    in_flight 0, 100 left    the client has not seen them

Invariants
    K1  for messages in_flight <= window, always: sent - returned never exceeds what was granted
    K2  the same for bytes, but one message may exceed them when no byte is in flight and some were granted: a
        message larger than the window would else wait for ever
    K3  no subscription has more than the limit outstanding
    K4  a whole RecordBatch may exceed the messages' credit too when none is in flight: it cannot be cut
"""

from __future__ import annotations

from typing import NamedTuple


class CreditRefused(Exception):
    """A grant past the limit (K3). Nothing has changed."""


class Credit(NamedTuple):
    """The account of one unit. A value: every change is a new one."""

    limit: int
    window: int = 0
    in_flight: int = 0

    @property
    def left(self) -> int:
        """What may still be sent. Below 0 only by the exception of K2."""
        return self.window - self.in_flight

    def sent(self, amount: int) -> Credit:
        """With so much more on its way."""
        return Credit(self.limit, self.window, self.in_flight + amount)

    def returned(self, amount: int) -> Credit:
        """With so much of it settled."""
        assert 0 <= amount <= self.in_flight
        return Credit(self.limit, self.window, self.in_flight - amount)

    def unsent(self, amount: int) -> Credit:
        """With what was sent taken back; where the client has returned it meanwhile, it has that much more."""
        returned = min(amount, self.in_flight)
        window = min(self.window + amount - returned, self.limit)
        return self._replace(window=window, in_flight=self.in_flight - returned)

    def widened(self, amount: int) -> Credit:
        """With `amount` more granted. Raises CreditRefused."""
        self._check(self.window + amount)
        return self._replace(window=self.window + amount)

    def permitted(self, amount: int) -> Credit:
        """With `amount` granted where nothing returns by itself. Raises CreditRefused."""
        self._check(self.left + amount)
        returned = min(amount, self.in_flight)
        return self._replace(window=self.window + amount - returned, in_flight=self.in_flight - returned)

    def _check(self, outstanding: int) -> None:
        if outstanding > self.limit:
            raise CreditRefused(f"would be {outstanding}; the limit is {self.limit}")


class Ledger:
    """Both accounts of one subscription, and whether the client has paused it."""

    __slots__ = ("_auto", "bytes", "messages", "paused")

    def __init__(self, messages: Credit, bytes_: Credit | None, *, auto: bool) -> None:
        """`bytes_` None: bytes are not limited. `auto`: credit returns with `returned`, else only by `permit`."""
        self.messages = messages
        self.bytes = bytes_
        self._auto = auto
        self.paused = False

    @property
    def message_budget(self) -> int:
        """Messages that may be sent now."""
        return 0 if self.paused else self.messages.left

    @property
    def byte_budget(self) -> int | None:
        """Bytes that may be sent now; None: any number. A single message may be larger (K2)."""
        return None if self.bytes is None else max(self.bytes.left, 0)

    def fits(self, size_bytes: int, *, record_count: int = 1) -> bool:
        """Whether one message, or one RecordBatch of so many records, of this size may be sent now."""
        if self.paused or not _fits(self.messages, record_count):
            return False
        return self.bytes is None or _fits(self.bytes, size_bytes)

    def sent(self, message_count: int, byte_count: int, *, whole: bool = False) -> None:
        """Book a frame before it goes: all of it within the budgets, or one message (or `whole` batch) that `fits`."""
        if message_count > 1 and not whole:
            assert message_count <= self.message_budget
            assert self.bytes is None or byte_count <= self.bytes.left
        assert message_count > 0
        assert self.fits(byte_count, record_count=message_count)
        self.messages = self.messages.sent(message_count)
        if self.bytes is not None:
            self.bytes = self.bytes.sent(byte_count)

    def returned(self, message_count: int, byte_count: int) -> None:
        """What was booked has been delivered, or settled: its credit comes back, if it does so by itself."""
        if not self._auto:
            return
        self.messages = self.messages.returned(message_count)
        if self.bytes is not None:
            self.bytes = self.bytes.returned(byte_count)

    def unsent(self, message_count: int, byte_count: int) -> None:
        """What was booked never reached the client, and will be booked again.

        Credit that returns by itself may have done so already; credit that the client returns never has.
        """
        self.messages = self._taken_back(self.messages, message_count)
        if self.bytes is not None:
            self.bytes = self._taken_back(self.bytes, byte_count)

    def _taken_back(self, credit: Credit, amount: int) -> Credit:
        return credit.returned(min(amount, credit.in_flight)) if self._auto else credit.unsent(amount)

    def permit(self, message_count: int, byte_count: int) -> None:
        """The client's grant. Raises CreditRefused; then neither account has changed."""
        grant = Credit.widened if self._auto else Credit.permitted
        messages = grant(self.messages, message_count)
        if self.bytes is not None:
            self.bytes = grant(self.bytes, byte_count)
        self.messages = messages


def _fits(credit: Credit, amount: int) -> bool:
    return amount <= credit.left or (credit.in_flight == 0 and credit.window > 0)
