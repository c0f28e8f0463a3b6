"""The network: a WebSocket and HTTP requests to one server, by aiohttp. `mq.testing` has another, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from mq.errors import Closed, ConnectionLost, MqError, NotReached

SUBPROTOCOL = "mq.v1.json"
FRAME_BYTES_MAX = 32 * 1024 * 1024
"""Of a received frame: one message has up to 6 MiB in base64, one raw batch 8 MiB."""
CLOSE_S = 2.0
"""How long the other side may take to answer a close."""
REQUEST_S = 60.0
CUT = 1006
"""The code of a connection that ended without one."""

_TRY_AGAIN = frozenset({408, 425, 429})


class Response(NamedTuple):
    """An HTTP answer. `body` is empty where there is none. `retry_after_s`: when to try again, if the server says."""

    status: int
    body: bytes
    retry_after_s: float | None = None


class Socket(Protocol):
    """One WebSocket."""

    async def send(self, data: bytes, is_binary: bool) -> None:
        """Send a frame; waits while the network takes no more. Raises ConnectionLost."""
        ...

    async def run(self, text: Callable[[bytes], object], binary: Callable[[bytes], object]) -> tuple[int, str]:
        """Pass on frames until the socket is closed; the close code and reason. Raises what the callbacks raise."""
        ...

    async def close(self, code: int) -> None:
        """Close it, and leave nothing behind."""
        ...


class Transport(Protocol):
    """The way to one server."""

    async def open_socket(self, token: str | None) -> Socket:
        """Raises ConnectionLost when it may work later, Closed when it will not."""
        ...

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, token: str | None
    ) -> Response:
        """One HTTP request, and its whole answer. Raises ConnectionLost without one, NotReached when it is certain that
        the server did not get it."""
        ...

    async def close(self) -> None:
        """Leave nothing behind."""
        ...


def base_url(url: str) -> str:
    """The server's URL as http or https, without a slash at the end. Raises MqError."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https") or not parts.hostname:
        raise MqError(f"{url!r} is no URL of a server; it looks like http://127.0.0.1:8082")
    path = parts.path.rstrip("/").removesuffix("/ws/v1")
    return urlunsplit((scheme, parts.netloc, path, "", ""))


class AiohttpSocket:
    """A socket of aiohttp."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse[Any]) -> None:
        self._websocket = websocket

    async def send(self, data: bytes, is_binary: bool) -> None:
        """Send a frame."""
        try:
            await self._websocket.send_frame(data, aiohttp.WSMsgType.BINARY if is_binary else aiohttp.WSMsgType.TEXT)
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectionLost(f"the connection was lost: {error}") from None

    async def run(self, text: Callable[[bytes], object], binary: Callable[[bytes], object]) -> tuple[int, str]:
        """Pass on frames until the end."""
        websocket = self._websocket
        receive = websocket.receive
        while True:
            message = await receive()  # returns at once, without a turn of the loop, while frames have arrived
            if message.type is aiohttp.WSMsgType.BINARY:
                binary(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                text(message.data)
            else:
                reason = message.extra if message.type is aiohttp.WSMsgType.CLOSE else ""
                return websocket.close_code or CUT, reason or ""

    async def close(self, code: int) -> None:
        """Close it."""
        await self._websocket.close(code=code)


class AiohttpTransport:
    """aiohttp's client session, made when it is first needed. `ssl`: as aiohttp takes it; None: its default checks."""

    def __init__(self, url: str, ssl: Any = None) -> None:
        self._url = base_url(url)
        self._ssl = True if ssl is None else ssl
        self._session: aiohttp.ClientSession | None = None

    async def open_socket(self, token: str | None) -> Socket:
        """A socket whose handshake was answered."""
        try:
            websocket = await self._of_loop().ws_connect(
                f"{self._url}/ws/v1",
                protocols=(SUBPROTOCOL,),
                headers=_bearer(token),
                max_msg_size=FRAME_BYTES_MAX,
                timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                decode_text=False,
                ssl=self._ssl,
            )
        except aiohttp.WSServerHandshakeError as error:
            if error.status >= 500 or error.status in _TRY_AGAIN:
                raise ConnectionLost(f"{self._url} answered {error.status}: {error.message}") from None
            raise Closed(_refused(self._url, error.status), error.status) from None
        except aiohttp.InvalidURL as error:
            raise Closed(f"{self._url}: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ConnectionLost(f"no connection to {self._url}: {error}") from None
        return AiohttpSocket(websocket)

    async def request(
        self, method: str, path: str, query: Mapping[str, str], body: bytes | None, token: str | None
    ) -> Response:
        """One request."""
        headers = _bearer(token)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with self._of_loop().request(
                method, self._url + path, params=query, data=body, headers=headers, ssl=self._ssl,
                timeout=aiohttp.ClientTimeout(total=REQUEST_S),
            ) as answer:  # fmt: skip
                after = answer.headers.get("Retry-After", "")
                return Response(answer.status, await answer.read(), float(after) if after.isdecimal() else None)
        except aiohttp.ClientConnectorError as error:
            raise NotReached(f"{method} {self._url}{path}: {error}") from None
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ConnectionLost(f"{method} {self._url}{path}: {error or type(error).__name__}") from None

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # transports close in the loop's next turn

    def _of_loop(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(trust_env=True)
        return self._session


def _bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"Authorization": f"Bearer {token}"}


def _refused(url: str, status: int) -> str:
    if status == 401:
        return f"{url} refused the token, or wants one: mq.connect(url, token=...)"
    if status == 403:
        return f"{url} refused the connection: the token lacks a right, or the origin is not allowed"
    return f"{url} answered {status} in place of a WebSocket: is this the URL of an mq server?"
