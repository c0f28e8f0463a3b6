"""Requests to a server, with the failures a person at a terminal can act on."""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote, urlsplit

import aiohttp
import orjson

from gateway.cli.terminal import UNREACHABLE, USAGE, CliError

TIMEOUT_S = 60.0
CA_VARIABLE = "MQ_CA"
JSON = "application/json"


class Client:
    """One server, over one keep-alive connection. Every method raises CliError."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def get(self, path: str) -> dict[str, object]:
        """The answer to a GET. Raises CliError."""
        return await self._request("GET", path, None, None)

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
        headers = {} if content_type is None else {"Content-Type": content_type}
        try:
            async with self._session.request(method, self._url + path, data=body, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError) as error:
            raise CliError(f"{self._url}: {error}; is its certificate's authority given by 'mq --ca FILE'?") from error
        except (aiohttp.ClientConnectorError, aiohttp.ServerDisconnectedError) as error:
            raise unreachable(self._url) from error
        except TimeoutError as error:
            raise CliError(f"{self._url} did not answer within {TIMEOUT_S:g} s", UNREACHABLE) from error
        except aiohttp.ClientError as error:
            raise CliError(f"{self._url}: {error}", UNREACHABLE) from error
        if response.status == 204:
            return {}
        try:
            answer = orjson.loads(content)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise CliError(f"{self._url} answered {response.status} without JSON; is it an mq server?", UNREACHABLE)
        if response.status >= 400:
            raise refused(answer)
        return answer


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    """A client of the server at `url`. Nothing is sent before the first request."""
    async with session(timeout_s=TIMEOUT_S) as opened:
        yield Client(opened, checked_url(url))


def session(*, timeout_s: float | None) -> aiohttp.ClientSession:
    """A session that says who it is by MQ_TOKEN, and trusts the certificates of MQ_CA (`mq --ca`) if that is set.

    The token is never an argument: those can be seen by everybody on the machine. Raises CliError.
    """
    token = os.environ.get("MQ_TOKEN", "").strip()
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout_s),
        headers={"Authorization": f"Bearer {token}"} if token else None,
        connector=aiohttp.TCPConnector(ssl=_trusted()),
    )


def _trusted() -> ssl.SSLContext | bool:
    """Whom to trust; True: the machine's own list."""
    file = os.environ.get(CA_VARIABLE)
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
        raise CliError(f"--url {url} is not a URL such as http://127.0.0.1:8082", USAGE)
    return url.rstrip("/")


def topic_path(topic: str) -> str:
    """A topic's name as one segment of a path."""
    return quote(topic, safe="")


def unreachable(url: str) -> CliError:
    """Nobody listens at the URL."""
    return CliError(f"no server at {url}: start one with 'mq serve --data DIR', or set --url or MQ_URL", UNREACHABLE)


def refused(answer: Mapping[str, object]) -> CliError:
    """The server's own words, the place of the fault, and what to do where that is known."""
    reasons = answer.get("validation_errors")
    what = "; ".join(map(str, reasons)) if isinstance(reasons, list) and reasons else str(answer.get("message"))
    hint = _HINTS.get(answer.get("error_code"), "")
    return CliError(f"{what.rstrip('.')} (error {answer.get('error_code')}){hint}")


_HINTS: dict[object, str] = {
    40101: ": put a token into MQ_TOKEN ('mq token create' makes one)",
    40301: ": the token has no scope for this ('mq token list' shows what it has)",
    40401: ": create it with 'mq topic create NAME'",
    40405: ": 'mq group list' shows those there are",
    40952: ": stop its members, or use --force",
    40955: ": the number of partitions of a topic is fixed when it is created",
}
