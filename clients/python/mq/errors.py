"""What can go wrong, by what a caller can do about it.

    MqError
    ├── Refused          the server said no: `code` and the text say why, `retriable` whether it may work later
    │   └── LeaseLost    the lease of a message ended: it was, or will be, delivered again
    ├── ConnectionLost   the connection ended before the answer came; whether the command was done is unknown
    ├── QueueFull        too many records wait to be sent: nothing was sent; `await client.room()`
    ├── Closed           this client or subscription is closed for good
    └── Undecodable      bytes that are not what was expected of them

A worker's handler raises `Reject` or `Retry` to say what becomes of its message; they are no failures of the client.
"""

from __future__ import annotations

from datetime import timedelta

LEASE_OVER = 40951


class MqError(Exception):
    """Base of every error of this package."""


class Refused(MqError):
    """The server's refusal. `code` is an HTTP status, or five digits that begin with one (docs/websocket.md)."""

    def __init__(
        self,
        message: str,
        code: int,
        *,
        retriable: bool = False,
        details: object = None,
        validation_errors: tuple[str, ...] = (),
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(f"{message} [{code}]")
        self.code = code
        self.retriable = retriable
        """Whether the same command may work later."""
        self.details = details
        self.validation_errors = validation_errors
        """One text for each part that breaks a rule."""
        self.retry_after_ms = retry_after_ms


class LeaseLost(Refused):
    """The lease of a message is over: another worker has the message now, or will get it. Stop working on it."""

    def __init__(self, message: str, code: int = LEASE_OVER) -> None:
        super().__init__(message, code)


class ConnectionLost(MqError):
    """No answer came. A send may or may not have been stored; with `idempotent=True` the client repeats it by
    itself."""


class NotReached(ConnectionLost):
    """There was no connection: nothing was done."""


class QueueFull(MqError):
    """Nothing was sent, because too many records wait already."""


class Closed(MqError):
    """Closed for good. `code`: the close code of the connection; 1000 if it was closed here."""

    def __init__(self, message: str, code: int = 1000) -> None:
        super().__init__(message)
        self.code = code


class Undecodable(MqError):
    """Bytes that are not what the protocol, or the type a value is read as, expects."""


class Reject(Exception):
    """Raised by a handler: never deliver this message again; move it to the dead letters, with this reason."""

    def __init__(self, reason: str = "rejected") -> None:
        super().__init__(reason)
        self.reason = reason


class Retry(Exception):
    """Raised by a handler: deliver this message again after `delay` ("90s", seconds or timedelta)."""

    def __init__(self, delay: str | float | timedelta | None = None, reason: str = "retry") -> None:
        super().__init__(reason)
        self.delay = delay
        self.reason = reason
