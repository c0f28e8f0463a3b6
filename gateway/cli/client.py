"""Requests to a server, with the failures a person at a terminal can act on, each in one sentence that says what to do.

Which server, with what token and whose certificates: a flag goes before an environment variable, and that before the
context (context.py).
"""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import orjson

from gateway.cli import context
from gateway.cli.terminal import UNREACHABLE, USAGE, CliError, rows_of

if TYPE_CHECKING:  # loaded by the first request: to make a token or to verify a directory takes none
    import aiohttp

_T = TypeVar("_T")

TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
CA_VARIABLE = "MQ_CA"
JSON = "application/json"
PAGE_ROWS = 1000


class Server(NamedTuple):
    """Where to ask, and with what. `ca`: a file of certificates to trust; None: the machine's own list."""

    url: str
    token: str | None = None
    ca: str | None = None


def server_of(url: str, environment: Mapping[str, str] | None = None) -> Server:
    """The server that a command's --url, the environment and the context choose. Raises CliError."""
    environment = os.environ if environment is None else environment
    chosen = context.selected(environment)
    url = url or environment.get("MQ_URL", "") or (context.URL_DEFAULT if chosen is None else chosen.url)
    url = checked_url(url)
    if chosen is not None and chosen.url != url:
        chosen = None  # what it says is meant for its own server
    token = environment.get("MQ_TOKEN", "").strip() or (chosen.token if chosen else None)
    if token is not None and not (token.isascii() and token.isprintable()):
        raise CliError("the token (MQ_TOKEN, or the context's) is none: it has a line's end or the like in it", USAGE)
    ca = environment.get(CA_VARIABLE) or (chosen.ca if chosen else None)
    return Server(url, token, ca)


def ask(url: str, request: Callable[[Client], Awaitable[_T]]) -> _T:
    """What a function gets from the server that `server_of` chooses. Raises CliError."""

    async def asked() -> _T:
        async with connected(url) as client:
            return await request(client)

    return asyncio.run(asked())


class Client:
    """One server, over one keep-alive connection. Every method raises CliError."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def get(self, path: str) -> dict[str, object]:
        """The answer to a GET. Raises CliError."""
        return await self._request("GET", path, None, None)

    async def listed(
        self, path: str, name: str, limit: int | None = None, *, page_rows: int = PAGE_ROWS, **asked: str | None
    ) -> tuple[list[dict[str, object]], dict[str, object]]:
        """Up to `limit` rows of the lists called `name`, page by page, and the first page. Raises CliError."""
        rows: list[dict[str, object]] = []
        first: dict[str, object] | None = None
        cursor: object = None
        while first is None or (cursor is not None and (limit is None or len(rows) < limit)):
            count = page_rows if limit is None else min(page_rows, limit - len(rows))
            given = {**asked, "limit": str(count), "cursor": None if cursor is None else str(cursor)}
            page = await self.get(path + query(**given))
            first = first or page
            rows += rows_of(page, name)
            cursor = page.get("next_cursor")
        return rows, first

    async def put(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """The answer to a PUT of a JSON body. Raises CliError."""
        return await self._request("PUT", path, orjson.dumps(body), JSON)

    async def patch(self, path: str, body: Mapping[str, object]) -> dict[str, object]:
        """The answer to a PATCH of a JSON body. Raises CliError."""
        return await self._request("PATCH", path, orjson.dumps(body), JSON)

    async def delete(self, path: str) -> dict[str, object]:
        """The answer; an empty one when there is nothing to say."""
        return await self._request("DELETE", path, None, None)

    async def post(self, path: str, body: bytes, content_type: str) -> dict[str, object]:
        """The answer to a POST. Raises CliError."""
        return await self._request("POST", path, body, content_type)

    async def _request(self, method: str, path: str, body: bytes | None, content_type: str | None) -> dict[str, object]:
        status, answer = await self._exchange(method, path, body, content_type)
        if status >= 400:
            raise refused(answer)
        return answer

    async def probe(self, path: str) -> tuple[int, dict[str, object]]:
        """The status and the answer to a GET, whatever they are. Raises CliError."""
        return await self._exchange("GET", path, None, None)

    async def _exchange(
        self, method: str, path: str, body: bytes | None, content_type: str | None
    ) -> tuple[int, dict[str, object]]:
        import aiohttp

        headers = {} if content_type is None else {"Content-Type": content_type}
        try:
            async with self._session.request(method, self._url + path, data=body, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise failure(self._url, error) from error
        if response.status == 204:
            return 204, {}
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise CliError(f"{self._url} answered {response.status} without JSON; is it an mq server?", UNREACHABLE)
        return response.status, answer


@asynccontextmanager
async def connected(url: str, *, timeout_s: float | None = None) -> AsyncIterator[Client]:
    """A client of the server that `server_of` chooses. Nothing is sent before the first request."""
    server = server_of(url)
    async with session(server, timeout_s=timeout_s or TIMEOUT_S) as opened:
        yield Client(opened, server.url)


def session(server: Server, *, timeout_s: float | None) -> aiohttp.ClientSession:
    """A session that says who it is by the server's token, and trusts its certificates. Raises CliError."""
    import aiohttp

    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S),
        headers={"Authorization": f"Bearer {server.token}"} if server.token else None,
        connector=aiohttp.TCPConnector(ssl=_trusted(server.ca), limit=0),
    )


def _trusted(file: str | None) -> ssl.SSLContext | bool:
    """Whom to trust; True: the machine's own list."""
    if not file:
        return True
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise CliError(f"--ca {file}: {error.strerror or 'no certificate in PEM'}", USAGE) from error


def checked_url(url: str) -> str:
    """The URL without a slash at its end. Raises CliError when it is none."""
    try:
        parts = urlsplit(url)
        legal = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        legal = False
    if not legal:
        raise CliError(f"{url} is not a URL such as http://127.0.0.1:8082", USAGE)
    return url.rstrip("/")


def path_segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")


def query(**asked: str | None) -> str:
    """The query of a URL, of what is not None; a name that Python reserves has `_` behind it."""
    given = {name.rstrip("_"): text for name, text in asked.items() if text is not None}
    return f"?{urlencode(given)}" if given else ""


_NO_ANSWER = "it ended the connection without an answer: is it an mq server, and http:// or https:// as in the URL?"


def failure(url: str, error: Exception) -> CliError:
    """Why no answer came, in our words: those of the HTTP library are for programmers."""
    import aiohttp

    host = urlsplit(url).hostname
    match error:
        case aiohttp.ClientConnectorDNSError():
            why = f"the name {host} is not known: is it spelled right in --url, MQ_URL or the context?"
        case aiohttp.ClientConnectorCertificateError(certificate_error=ssl.SSLCertVerificationError() as refusal):
            why = f"its certificate is not trusted ({refusal.verify_message}): name its authority with 'mq --ca FILE'"
        case aiohttp.ClientConnectorSSLError() | ssl.SSLError():
            why = "it does not speak TLS as this client does: is the URL https:// where it should be http://?"
        case aiohttp.ConnectionTimeoutError():
            why = f"no connection within {CONNECT_TIMEOUT_S:g} s: is the port right, and open in the firewall?"
        case TimeoutError():
            why = "it took too long to answer: try again, or look at its log"
        case aiohttp.ServerDisconnectedError() | aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            why = _NO_ANSWER
        case OSError(errno=errno.EHOSTUNREACH | errno.ENETUNREACH):
            why = "there is no way to its network: is the address right?"
        case aiohttp.ClientConnectorError():
            why = (
                "nothing listens there: start one with 'mq serve --data DIR', or choose another with --url or a context"
            )
        case OSError(errno=errno.ECONNRESET | errno.EPIPE):
            why = _NO_ANSWER
        case _:
            why = f"the request failed ({type(error).__name__})"
    return CliError(f"cannot reach {url}: {why}", UNREACHABLE)


def refused_socket(url: str, status: int) -> CliError:
    """A WebSocket's handshake was answered with this status."""
    match status:
        case 401:
            return CliError(f"{url} needs credentials{_HINTS[40101]}")
        case 403:
            return CliError(f"{url} refuses these credentials{_HINTS[40301]}")
        case _ if status >= 500 or status == 429:
            return CliError(f"{url} refused the WebSocket with {status}; its log says why")
        case _:
            return CliError(f"{url} has no WebSocket ({status}); is it an mq server?", UNREACHABLE)


def refused(answer: Mapping[str, object]) -> CliError:
    """The server's own words, the place of the fault, and what to do where that is known."""
    reasons = answer.get("validation_errors")
    what = "; ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else str(answer.get("message"))
    hint = _HINTS.get(answer.get("error_code"), "")
    return CliError(f"{what.rstrip('.')} (error {answer.get('error_code')}){hint}")


_HINTS: dict[object, str] = {
    40101: ": give a token by MQ_TOKEN or a context ('mq token create' makes one, on the server's machine)",
    40301: ": the token has no scope for this ('mq token list' shows what it has)",
    40401: ": create it with 'mq topic create NAME'",
    40405: ": 'mq group list' shows those there are",
    40952: ": stop its members, or use --force",
    40955: ": 'mq topic alter' changes what can be changed",
}
