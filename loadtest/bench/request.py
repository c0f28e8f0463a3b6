"""One HTTP request as load clients repeat it, and what a stretch of load came to. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send again and again. `target` is path and query."""

    method: str
    target: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def encode(self, url: str) -> bytes:
        """The bytes of the request to the server at `url`."""
        headers = {"Host": urlsplit(url).netloc, **self.headers}
        if self.body or self.method != "GET":
            headers["Content-Length"] = str(len(self.body))
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.method} {self.target} HTTP/1.1\r\n{lines}\r\n".encode() + self.body


class Load(NamedTuple):
    """What one run of a load client came to. Times of answers are in ms."""

    request_count: int
    error_count: int
    duration_s: float
    p50_ms: float
    p99_ms: float


class RunFailed(Exception):
    """A run that yields no number; the message says why."""


class LoadClient(Protocol):
    """Sends one request over many keep-alive connections, each as soon as the answer before it is there."""

    @property
    def name(self) -> str: ...

    async def drive(self, url: str, request: Request, *, connections: int, duration_s: float) -> Load:
        """Load the server for about `duration_s`. Raises RunFailed, or ConnectionError when no server listens."""
        ...
