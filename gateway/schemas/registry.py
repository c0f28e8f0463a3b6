"""A Confluent-compatible schema registry, over HTTP: the five requests that serializers make of it.

    GET  /schemas/ids/{id}                     a schema
    GET  /subjects/{subject}/versions/{v}      a schema, by a version's number or `latest`
    POST /subjects/{subject}                   whether a subject has a schema, and as which version
    POST /subjects/{subject}/versions          register it
    (what a schema refers to are versions of other subjects)

An answer that does not come in time, or is a fault of the registry, is RequestError 503/50352: worth a retry. One that
refuses this server (401, 403), or is no answer of a registry, is 502/50251: an operator has to look. Redirects are not
followed: they would carry the credentials elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from gateway.auth.operator_files import KEYS_BYTES_MAX, read_file
from gateway.codec.schema_parts import SCHEMA_ID_MAX
from gateway.errors import REGISTRY_AWAY, REGISTRY_REFUSES, RequestError
from gateway.settings.registry import RegistryConfig
from store.limits import MiB

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 8
ANSWER_BYTES_MAX = 1 * MiB
"""Of one answer: a schema of the largest size, with its line breaks and quotes escaped."""

_TYPE = "application/vnd.schemaregistry.v1+json"
_SAID_CHARS_MAX = 300
_RETRY_MS = 1000


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one refers to, by the name that it has there."""

    name: str
    subject: str
    version: int


class Registered(msgspec.Struct, frozen=True, rename="camel"):
    """A schema of the registry: as an id's answer, a version's or a look-up's has it."""

    schema: str = ""
    schema_type: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int | None = None
    version: int | None = None
    subject: str | None = None


class Refused(Exception):
    """What the registry does not have or does not take: its status, its own error code, and its words."""

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code
        self.message = message


class _Said(msgspec.Struct):
    """The body of a refusal."""

    error_code: int = 0
    message: str = ""


class Registry:
    """One registry. Used as a context manager."""

    def __init__(self, config: RegistryConfig) -> None:
        """Raises OSError, ValueError for a `ca_file` that cannot be used."""
        assert config.url is not None
        self._config = config
        self._base = config.url.rstrip("/")
        self._tls = ssl.create_default_context(cafile=config.ca_file) if config.ca_file is not None else None
        self._is_away = False

    async def __aenter__(self) -> Registry:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=True if self._tls is None else self._tls)
        self._session = aiohttp.ClientSession(
            connector=connector,
            timeout=aiohttp.ClientTimeout(total=self._config.timeout_ms / 1000),
            trust_env=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def by_id(self, schema_id: int) -> Registered:
        """A schema. Raises Refused, RequestError."""
        return await self._ask("GET", f"/schemas/ids/{schema_id}")

    async def by_version(self, subject: str, version: int | None) -> Registered:
        """A version of a subject; the newest for None. Raises Refused, RequestError."""
        name = "latest" if version is None else str(version)
        return await self._ask("GET", f"/subjects/{quote(subject, safe='')}/versions/{name}", with_id=True)

    async def look_up(self, subject: str, schema: Mapping[str, Any]) -> Registered:
        """What the registry has of this schema under a subject. Raises Refused, RequestError."""
        return await self._ask("POST", f"/subjects/{quote(subject, safe='')}", schema, with_id=True)

    async def register(self, subject: str, schema: Mapping[str, Any]) -> Registered:
        """The id of this schema, which is registered under a subject now. Raises Refused, RequestError."""
        return await self._ask("POST", f"/subjects/{quote(subject, safe='')}/versions", schema, with_id=True)

    async def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, with_id: bool = False
    ) -> Registered:
        status, said = await self._exchange(method, path, body)
        if status != HTTPStatus.OK:
            raise self._refusal(status, said)
        try:
            answer = msgspec.json.decode(said, type=Registered)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _no_registry(f"it answers {method} {path} with what is no schema") from error
        if with_id and (answer.id is None or not 0 < answer.id <= SCHEMA_ID_MAX):
            raise _no_registry(f"it answers {method} {path} without an id")
        return answer

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        headers = {"Accept": f"{_TYPE}, application/json", **self._credentials()}
        if body is not None:
            headers["Content-Type"] = _TYPE
        data = None if body is None else msgspec.json.encode(body)
        try:
            async with self._session.request(
                method, URL(self._base + path, encoded=True), data=data, headers=headers, allow_redirects=False
            ) as answer:
                said = await answer.content.read(ANSWER_BYTES_MAX + 1)
                while not answer.content.at_eof() and len(said) <= ANSWER_BYTES_MAX:
                    said += await answer.content.read(ANSWER_BYTES_MAX + 1 - len(said))
        except (aiohttp.ClientError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            why = f"no answer within {self._config.timeout_ms} ms" if isinstance(error, TimeoutError) else str(error)
            raise self._away(why) from error
        if len(said) > ANSWER_BYTES_MAX:
            raise _no_registry(f"its answer to {method} {path} has more than {ANSWER_BYTES_MAX} bytes")
        if answer.status >= 500 or answer.status == HTTPStatus.TOO_MANY_REQUESTS:
            raise self._away(f"status {answer.status}")
        if self._is_away:
            self._is_away = False
            log.info("the schema registry answers again url=%s", self._base)
        return answer.status, said

    def _credentials(self) -> dict[str, str]:
        """The header, of what the files say now. Raises RequestError."""
        config = self._config
        try:
            if config.token_file is not None:
                return {"Authorization": f"Bearer {_secret_in(config.token_file)}"}
            if config.user is not None:
                assert config.password_file is not None
                login = aiohttp.encode_basic_auth(config.user, _secret_in(config.password_file), encoding="utf-8")
                return {"Authorization": login}
        except (OSError, ValueError) as error:
            log.error("the credentials for the schema registry cannot be read error=%s", error)
            raise RequestError(REGISTRY_REFUSES, "The credentials for the schema registry cannot be read.") from error
        return {}

    def _refusal(self, status: int, said: bytes) -> Exception:
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            log.error("the schema registry refuses this server url=%s status=%d", self._base, status)
            return RequestError(REGISTRY_REFUSES, f"The schema registry refuses this server: status {status}.")
        try:
            words = msgspec.json.decode(said, type=_Said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            words = _Said()
        if not words.error_code:
            return _no_registry(f"status {status}")
        return Refused(status, words.error_code, words.message[:_SAID_CHARS_MAX])

    def _away(self, why: str) -> RequestError:
        if not self._is_away:
            self._is_away = True
            log.warning("the schema registry does not answer url=%s why=%s", self._base, why)
        # What the caller is told does not name the registry's host.
        return RequestError(
            REGISTRY_AWAY, "The schema registry does not answer; try again.", retriable=True, retry_after_ms=_RETRY_MS
        )


def _secret_in(file: Path) -> str:
    return read_file(file, KEYS_BYTES_MAX).decode().strip()


def _no_registry(why: str) -> RequestError:
    log.error("the schema registry's answer cannot be used why=%s", why)
    return RequestError(REGISTRY_REFUSES, f"The schema registry cannot be used: {why}.")
