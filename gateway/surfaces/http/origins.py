"""Which web pages may use this server: the Origin and Host rules, and the CORS headers. Pure.

A browser lets any page of the web send requests to any server it can reach, this machine's included, and says in
`Origin` whose page it was. So a request with an Origin is refused unless the page came from this server or the operator
has listed its origin. Programs send no Origin, and are not concerned. `localhost`, `127.0.0.1` and `[::1]` are one host
here: a page of one may use the server under another, on the same port.

A page may also have its own name point to 127.0.0.1 and so pass for this server's (DNS rebinding); the Host it sends is
then that name. A server without authentication, which therefore listens on loopback only, answers only to
Hosts that such a name cannot be: addresses, localhost, and what the operator named.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from aiohttp import hdrs
from multidict import istr

from gateway.errors import FORBIDDEN, RequestError
from gateway.settings.config import ANY

log = logging.getLogger(__name__)

ORIGIN = istr("Origin")
HOST = istr("Host")

KNOWN_MAX = 100
"""Pairs of Origin and Host remembered as fine, and as many of those that were refused and logged."""

LOOPBACK_HOSTS = frozenset(("localhost", "127.0.0.1", "[::1]"))

PREFLIGHT_S = 600
"""How long a browser may remember what it was told about a page's requests."""

EXPOSED = ", ".join(
    ("X-Request-Id", "Retry-After", "Location", "WWW-Authenticate", "Allow", "ETag", "Mq-Acks", "Mq-Topic",
     "Mq-Partition", "Mq-Offset", "Mq-Next-Offset", "Mq-Beginning-Offset", "Mq-End-Offset", "Mq-Epoch", "Mq-Timestamp",
     "Mq-Store-Timestamp", "Mq-Key", "Mq-Tag", "Mq-Tombstone", "Mq-Message-Group", "Mq-Message-Id", "Mq-Receipt",
     "Mq-Delivery-Attempt", "Mq-Visible-Until", "Mq-Schedule-Id", "Mq-Schedule-Key", "Mq-Deliver-At",
     "Mq-Missing-Nodes", "Idempotent-Replayed", "traceparent", "tracestate")
)  # fmt: skip
"""Headers of answers that pages may read: all that the API document declares and browsers do not show by themselves
(a test compares). With a token in a request "*" would do in most browsers, but not in all."""

_OF_RECORDS = ("mq-header-", "ce-")


class Origins:
    """The rules of one server. `allowed` are origins such as `https://app.example.org`, or "*".

    `names`: the only host names it answers to, besides addresses and localhost; None: it answers to any.
    """

    def __init__(self, allowed: tuple[str, ...], names: frozenset[str] | None) -> None:
        self._allowed = frozenset(allowed)
        self._names = names
        self._known: set[tuple[str | None, str | None]] = set()
        self._logged: set[tuple[str | None, str | None]] = set()

    def check(self, headers: Mapping[str, str]) -> None:
        """Raises RequestError 403 for a page that may not be here."""
        origin = headers.get(ORIGIN)
        if origin is None and self._names is None:
            return
        host = headers.get(HOST)
        if (origin, host) in self._known:
            return
        if self._names is not None and host is not None and not self._answers_to(host):
            self._log_refused(origin, host)
            raise RequestError(
                FORBIDDEN,
                f"This server does not answer to the name {host[:200]!r}: authentication is disabled, so it serves "
                "localhost alone. Use http://127.0.0.1, or enable authentication.",
            )
        if origin is not None and not self.allows(origin, host or ""):
            self._log_refused(origin, host)
            raise RequestError(
                FORBIDDEN, f"Pages of {origin[:200]!r} may not use this server (setting allowed_origins)."
            )
        if len(self._known) < KNOWN_MAX:
            self._known.add((origin, host))

    def allows(self, origin: str, host: str) -> bool:
        """Whether pages of this origin may use the server that the request called `host`."""
        if not origin.isascii():  # no browser sends one, and it could not be repeated
            return False
        if origin in self._allowed or ANY in self._allowed:
            return True
        try:
            served_by = urlsplit(origin).netloc
        except ValueError:
            return False
        return bool(served_by) and _one_name(served_by) == _one_name(host)

    def answer_headers(self, headers: Mapping[str, str], answered: Iterable[str] = ()) -> dict[str, str]:
        """What lets a page read the answer to its request; empty when it has no Origin, or one that is refused.
        `answered`: names of the answer's headers, for those that stand for headers of a record."""
        origin = headers.get(ORIGIN)
        if origin is None or not self.allows(origin, headers.get(HOST) or ""):
            return {}
        of_record = sorted({name for name in answered if name.lower().startswith(_OF_RECORDS)})
        return {
            hdrs.ACCESS_CONTROL_ALLOW_ORIGIN: origin,
            hdrs.ACCESS_CONTROL_EXPOSE_HEADERS: ", ".join((EXPOSED, *of_record)),
            hdrs.VARY: "Origin",
        }

    def preflight_headers(self, headers: Mapping[str, str], methods: str) -> dict[str, str]:
        """What a browser is told before a page's request; empty for a page that may not send it."""
        granted = self.answer_headers(headers)
        if not granted:
            if ORIGIN in headers:
                self._log_refused(headers.get(ORIGIN), headers.get(HOST))
            return {}
        wanted = headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
        return granted | {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: methods,
            # Repeated, not judged: the origin was, and no header of a request does harm by its name.
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: wanted if wanted.isprintable() and len(wanted) <= 1000 else "",
            hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_S),
            hdrs.VARY: "Origin, Access-Control-Request-Headers",
        }

    def _log_refused(self, origin: str | None, host: str | None) -> None:
        """A browser hides the answer from its page, so the log is where an operator finds the reason. Each pair is
        logged once, and so many pairs at most: any page of the web can send them."""
        if (origin, host) not in self._logged and len(self._logged) < KNOWN_MAX:
            self._logged.add((origin, host))
            log.warning(
                "a web page was refused origin=%s host=%s: to let it in, add its origin to the setting allowed_origins "
                "(MQ_ALLOWED_ORIGINS)",
                _shown(origin),
                _shown(host),
            )

    def _answers_to(self, host: str) -> bool:
        assert self._names is not None
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name == "localhost" or name.endswith(".localhost") or name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _shown(text: str | None) -> str:
    """A header for the log, whose file takes no octets that are no text."""
    return (text or "-")[:200].encode("utf-8", "backslashreplace").decode()


def _one_name(netloc: str) -> str:
    """A host and port, in lower case, with one name for all that mean this machine's loopback address."""
    netloc = netloc.lower()
    host, colon, port = netloc.rpartition(":")
    if not port.isdecimal():
        host, colon, port = netloc, "", ""
    return f"localhost{colon}{port}" if host in LOOPBACK_HOSTS else netloc
