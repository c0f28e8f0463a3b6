"""How much a subscription may be sent: credit in messages and, if asked for, in bytes. Pure.

`window` is what the client has granted, `in_flight` what was sent and not returned; the difference may be sent.

    window 100, in_flight 0   sent(30)      in_flight 30, 70 left
    automatic:                returned(30)  in_flight 0, 100 left    the frame was handed to the transport
                              widened(50)   window 150               for good
    manual:                   permitted(50) in_flight 0, window 120  what was sent is returned first, then more

Invariants
    K1  for messages in_flight <= window, always: sent - returned never exceeds what was granted
    K2  the same for bytes, but one message may exceed them when no byte is in flight and some were granted: a
        message larger than the window would else wait for ever
    K3  nobody has more than the limit outstanding
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
        return self._replace(in_flight=self.in_flight + amount)

    def returned(self, amount: int) -> Credit:
        assert 0 <= amount <= self.in_flight
        return self._replace(in_flight=self.in_flight - amount)

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

    __slots__ = ("_auto", "_paused", "bytes", "messages")

    def __init__(self, messages: Credit, bytes_: Credit | None, *, auto: bool) -> None:
        """`bytes_` None: bytes are not limited. `auto`: credit returns with `handed_over`, else only by `permit`."""
        self.messages = messages
        self.bytes = bytes_
        self._auto = auto
        self._paused = False

    @property
    def message_budget(self) -> int:
        """Messages that may be sent now."""
        return 0 if self._paused else self.messages.left

    def fits(self, size_bytes: int) -> bool:
        """Whether one message of this size may be sent now."""
        if self.message_budget <= 0:
            return False
        credit = self.bytes
        return credit is None or size_bytes <= credit.left or (credit.in_flight == 0 and credit.window > 0)

    def sent(self, message_count: int, byte_count: int) -> None:
        """Book a frame before it goes: all of it within the budgets, or one message that `fits`."""
        assert 0 < message_count <= self.message_budget
        assert message_count == 1 or self.bytes is None or byte_count <= self.bytes.left
        assert self.fits(byte_count)
        self.messages = self.messages.sent(message_count)
        if self.bytes is not None:
            self.bytes = self.bytes.sent(byte_count)

    def handed_over(self, message_count: int, byte_count: int) -> None:
        """The transport has taken a frame that was booked."""
        if not self._auto:
            return
        self.messages = self.messages.returned(message_count)
        if self.bytes is not None:
            self.bytes = self.bytes.returned(byte_count)

    def permit(self, message_count: int, byte_count: int) -> None:
        """The client's grant. Raises CreditRefused; then neither account has changed."""
        grant = Credit.widened if self._auto else Credit.permitted
        messages = grant(self.messages, message_count)
        if self.bytes is not None:
            self.bytes = grant(self.bytes, byte_count)
        self.messages = messages

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
