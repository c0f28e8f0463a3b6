"""Metadata in etcd, through the JSON gateway that every etcd 3.4 and newer serves beside gRPC.

The gateway is plain HTTP, so this needs no dependency beyond aiohttp; of the Python clients for gRPC one is kept, and
it knows neither TLS nor several endpoints. What is particular about it:

    connection refused   the request was not sent: the next endpoint is tried
    connection lost      a change may have been made: OutcomeUnknown; reads are repeated at the next endpoint
    being stopped        an etcd that ends answers 0, 1, 2 or 13, also for changes that it has made: likewise
    token expired        simple tokens live five minutes: log in again, repeat (nothing was done)
    compaction           a watch that asks for what is gone is told so, and lists all keys again
    silent watch         a dead peer looks like a quiet one: a watch without a word for WATCH_SILENT_S is opened again
                         from where it stood, which costs nothing when nothing was missed
    lost lease           etcd revoked leases in use (#15247; Debian 12's 3.4.23): the key is written again

The gateway can be switched off (`--enable-grpc-gateway=false`), and knows no users by certificate (common names): log
in by password.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from gateway.cluster.metadata import (
    ABSENT,
    Changes,
    Listing,
    MetadataError,
    OutcomeUnknown,
    SessionTaken,
    TooLarge,
    Unavailable,
    Value,
    check_change,
)
from store.limits import MiB

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
"""One request to one endpoint. Longer than etcd needs to elect a leader."""

CONNECT_TIMEOUT_S = 2.0
WATCH_SILENT_S = 30.0
"""A watch that says nothing for so long is opened again."""

WATCH_LINE_BYTES_MAX = 32 * MiB
"""One answer of a watch; beyond it, all keys are listed again, page by page."""

LIST_PAGE_KEYS, LIST_PAGE_KEYS_MAX = 1_000, 20_000
LIST_PAGE_BYTES = 4 * MiB
"""Of the first page of a list, and of later ones, about. etcd 3.4 counts all keys behind each page: of a million keys a
page of 1,000 took 1.4 s, one of 8,000 took 2.2 s."""

RETRY_S, RETRY_MAX_S = 0.1, 2.0
RENEWALS_PER_TTL = 3

_INVALID_ARGUMENT, _RESOURCE_EXHAUSTED, _OUT_OF_RANGE, _UNAUTHENTICATED = 3, 8, 11, 16
_NOTHING_DONE = frozenset((_INVALID_ARGUMENT, 5, 6, 7, _RESOURCE_EXHAUSTED, 9, _OUT_OF_RANGE, 12, _UNAUTHENTICATED))
"""Codes by which etcd itself refuses. Others may come of its gateway, too: one that is being stopped has answered
transactions that were done with 0, 1, 2 and 13."""

_LOGIN = "/v3/auth/authenticate"
_TOKEN_TROUBLES = ("etcdserver: user name is empty", "etcdserver: revision of auth store is old")
"""How etcd says that it wants a token and got none, or one of before a change of users or roles; the code is the one
for arguments of any kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdConfig:
    """Where etcd is, and how to get in."""

    endpoints: Sequence[str]
    """`http://host:2379`; tried in turn when one cannot be reached."""

    prefix: str = "mq/"
    """Before every key, so that several clusters share one etcd."""

    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None
    """For `https` endpoints."""


class _Refused(Exception):
    """etcd has answered with an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Compacted(Exception):
    """The revisions to be watched are gone."""


class EtcdMetadata:
    """`Metadata` in etcd. Use as an async context manager."""

    def __init__(self, config: EtcdConfig) -> None:
        self._config = config
        self._endpoints = [endpoint.rstrip("/") for endpoint in config.endpoints]
        if not self._endpoints:
            raise ValueError("no etcd endpoint")
        self._at = 0  # the endpoint in use
        self._token: str | None = None
        self._logging_in: asyncio.Task[None] | None = None
        self._password = config.password
        self._http: aiohttp.ClientSession

    async def __aenter__(self) -> EtcdMetadata:
        tls: ssl.SSLContext | bool = True if self._config.tls is None else self._config.tls
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=tls, limit=0),
            timeout=aiohttp.ClientTimeout(total=CALL_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S),
            json_serialize=lambda value: orjson.dumps(value).decode(),
            trust_env=False,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._logging_in is not None:
            self._logging_in.cancel()
            await asyncio.wait([self._logging_in])
        await self._http.close()

    def use_password(self, password: str) -> None:
        """Log in with another password from now on; who is logged in stays so."""
        self._password = password

    # ---- calls -----------------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: Mapping[str, object], *, may_repeat: bool = True) -> dict[str, Any]:
        """The answer of the first endpoint that gives one. Raises Unavailable, OutcomeUnknown (unless it may be
        repeated), _Refused for errors that are nothing of the kind."""
        trouble = ""
        has_logged_in = False
        tries_left = len(self._endpoints)
        while tries_left:
            token = self._token
            try:
                return await self._call_once(path, body)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:  # it was not sent
                trouble = str(error)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                trouble = f"{type(error).__name__}: {error}"
                if not may_repeat:
                    self._next_endpoint()
                    raise OutcomeUnknown(f"etcd at {self._endpoint} may have done it: {trouble}") from error
            except _Refused as error:
                trouble = str(error)
                is_login_missing = error.code == _UNAUTHENTICATED or any(one in trouble for one in _TOKEN_TROUBLES)
                if is_login_missing and self._config.user is not None and not has_logged_in:
                    has_logged_in = True
                    await self._log_in(token)
                    continue
                if error.code == _RESOURCE_EXHAUSTED:  # no space, too many requests: nothing was done
                    raise Unavailable(f"etcd refuses: {trouble}") from error
                if error.code in _NOTHING_DONE:
                    raise
                if not may_repeat:
                    at = self._endpoint
                    self._next_endpoint()
                    raise OutcomeUnknown(f"etcd at {at} may have done it: {trouble}") from error
            tries_left -= 1
            self._next_endpoint()
        raise Unavailable(f"no etcd endpoint answers; the last one said: {trouble}")

    @property
    def _endpoint(self) -> str:
        return self._endpoints[self._at % len(self._endpoints)]

    def _next_endpoint(self) -> None:
        self._at += 1

    @property
    def _headers(self) -> dict[str, str]:
        return {} if self._token is None else {"Authorization": self._token}

    async def _call_once(self, path: str, body: Mapping[str, object]) -> dict[str, Any]:
        headers = {} if path == _LOGIN else self._headers
        async with self._http.post(self._endpoint + path, json=body, headers=headers) as response:
            return _answer(_message(await response.read()), response.status)

    async def _log_in(self, refused: str | None) -> None:
        """Have another token than the one that was refused. A login is a tenth of a second of etcd's CPU time, on
        purpose, and an etcd that was restarted knows no token: so one does for all calls that wait for it."""
        if self._logging_in is None or self._logging_in.done():
            if self._token != refused:
                return
            self._logging_in = asyncio.create_task(self._authenticated())
            self._logging_in.add_done_callback(lambda login: login.cancelled() or login.exception())
        await asyncio.shield(self._logging_in)

    async def _authenticated(self) -> None:
        config = self._config
        try:
            answer = await self._call(_LOGIN, {"name": config.user, "password": self._password})
        except _Refused as error:
            raise MetadataError(f"etcd does not let {config.user} in: {error}") from error
        self._token = answer["token"]

    async def _ask(self, path: str, body: Mapping[str, object], *, may_repeat: bool = True) -> dict[str, Any]:
        """As `_call`; what etcd refuses is a MetadataError."""
        try:
            return await self._call(path, body, may_repeat=may_repeat)
        except _Refused as error:
            if error.code == _INVALID_ARGUMENT and "too large" in str(error):
                raise TooLarge(f"etcd refuses: {error}") from error
            raise MetadataError(f"etcd refuses: {error}") from error

    def _encoded(self, key: str) -> str:
        return _base64((self._config.prefix + key).encode())

    def _decoded(self, key: str) -> str:
        return b64decode(key).decode()[len(self._config.prefix) :]

    # ---- keys ------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> Value | None:
        """See `Metadata.get`; the read is linearizable."""
        answer = await self._ask("/v3/kv/range", {"key": self._encoded(key)})
        return _value(answer["kvs"][0]) if answer.get("kvs") else None

    async def list(self, prefix: str) -> Listing:
        """See `Metadata.list`."""
        while True:
            try:
                return await self._listed(prefix)
            except _Refused as error:
                if error.code != _OUT_OF_RANGE:
                    raise MetadataError(f"etcd refuses: {error}") from error
                # its revision was compacted between two pages: begin again

    async def _listed(self, prefix: str) -> Listing:
        first = (self._config.prefix + prefix).encode()
        request: dict[str, object] = {"range_end": _base64(_behind(first)), "limit": LIST_PAGE_KEYS}
        values: dict[str, Value] = {}
        revision, start = 0, first
        while True:
            answer = await self._call("/v3/kv/range", {**request, "key": _base64(start)})
            revision = revision or int(answer["header"]["revision"])
            request["revision"] = revision
            kvs = answer.get("kvs", [])
            values.update((self._decoded(kv["key"]), _value(kv)) for kv in kvs)
            if not answer.get("more"):
                return Listing(revision, values)
            page_bytes = sum(len(kv["key"]) + len(kv.get("value", "")) for kv in kvs)
            request["limit"] = min(LIST_PAGE_KEYS_MAX, 1 + LIST_PAGE_BYTES * len(kvs) // page_bytes)
            start = b64decode(kvs[-1]["key"]) + b"\0"

    async def compare_and_set(self, expected: Mapping[str, int], changes: Mapping[str, bytes | None]) -> int | None:
        """See `Metadata.compare_and_set`."""
        return await self._change(expected, changes)

    async def _change(
        self, expected: Mapping[str, int], changes: Mapping[str, bytes | None], lease: str | None = None
    ) -> int | None:
        check_change(expected, changes)
        compare = [
            {"key": self._encoded(key), "target": "MOD", "result": "EQUAL", "mod_revision": str(revision)}
            for key, revision in expected.items()
        ]
        attached = {} if lease is None else {"lease": lease}
        success = [
            {"request_delete_range": {"key": self._encoded(key)}}
            if data is None
            else {"request_put": {"key": self._encoded(key), "value": _base64(data), **attached}}
            for key, data in changes.items()
        ]
        answer = await self._ask("/v3/kv/txn", {"compare": compare, "success": success}, may_repeat=False)
        return int(answer["header"]["revision"]) if answer.get("succeeded") else None

    # ---- watches ---------------------------------------------------------------------------------------------------

    async def watch(self, prefix: str) -> AsyncGenerator[Listing | Changes, None]:
        """See `Metadata.watch`."""
        seen: int | None = None
        retry_s = RETRY_S
        is_lost = False
        while True:
            try:
                if seen is None:
                    listing = await self.list(prefix)
                    seen = listing.revision
                    yield listing
                async for changes in self._watched(prefix, seen + 1):
                    if is_lost:
                        log.info("metadata is watched again prefix=%s", prefix)
                    retry_s, is_lost = RETRY_S, False
                    if changes is not None:
                        seen = changes.revision
                        yield changes
            except _Compacted:
                log.info("metadata was compacted behind a watch; listing all keys prefix=%s", prefix)
                seen = None
            except aiohttp.SocketTimeoutError:  # silent for long, which need not mean anything
                self._next_endpoint()
            except (Unavailable, aiohttp.ClientError, TimeoutError) as error:
                if not is_lost:
                    log.warning("metadata cannot be watched, trying again prefix=%s error=%s", prefix, error)
                is_lost = True
                self._next_endpoint()
                await asyncio.sleep(retry_s)
                retry_s = min(retry_s * 2, RETRY_MAX_S)

    async def _watched(self, prefix: str, revision: int) -> AsyncIterator[Changes | None]:
        """Changes from a revision on, until the connection ends; None when the watch has begun."""
        first = (self._config.prefix + prefix).encode()
        create = {"key": _base64(first), "range_end": _base64(_behind(first)), "start_revision": str(revision)}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=WATCH_SILENT_S)
        token = self._token
        asking = self._http.post(
            f"{self._endpoint}/v3/watch", json={"create_request": create}, headers=self._headers, timeout=timeout
        )
        # The first message, that the watch has begun, comes at once; a connection that died unnoticed says nothing.
        async with await asyncio.wait_for(asking, CALL_TIMEOUT_S) as response:
            rest = bytearray()
            async for chunk in response.content.iter_any():
                rest += chunk
                if len(rest) > WATCH_LINE_BYTES_MAX:
                    raise _Compacted
                *lines, last = rest.split(b"\n") if b"\n" in chunk else [rest]
                rest = bytearray(last)
                for line in lines:
                    try:
                        message = _message(line)
                    except ValueError as error:  # something between here and etcd has answered
                        raise Unavailable(f"what answers a watch is not etcd: {error}") from error
                    async for changes in self._told(message, response.status, token):
                        yield changes
        raise Unavailable("etcd has ended the watch")

    async def _told(self, message: dict[str, Any], status: int, token: str | None) -> AsyncIterator[Changes | None]:
        """What one message of a watch that was opened with this token says."""
        try:
            result = _answer(message, status).get("result")
        except _Refused as error:
            await self._watch_refused(error, token)
            return
        if not isinstance(result, dict):
            raise Unavailable("what answers a watch is not etcd: no result")
        if result.get("canceled"):
            if int(result.get("compact_revision", 0)):
                raise _Compacted
            await self._watch_refused(_Refused(_UNAUTHENTICATED, result.get("cancel_reason", "canceled")), token)
        if result.get("created"):
            yield None
        by_revision: dict[int, dict[str, Value | None]] = {}
        for event in result.get("events", ()):
            kv = event["kv"]
            changed = by_revision.setdefault(int(kv["mod_revision"]), {})
            changed[self._decoded(kv["key"])] = None if event.get("type") == "DELETE" else _value(kv)
        for revision, values in by_revision.items():
            yield Changes(revision, values)

    async def _watch_refused(self, error: _Refused, token: str | None) -> None:
        """Log in again, if that is what it may need, and have the watch opened again."""
        if self._config.user is not None:
            await self._log_in(token)
        raise Unavailable(f"etcd refuses to be watched: {error}")

    # ---- sessions --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def session(self, key: str, data: bytes, *, ttl_ms: int) -> AsyncIterator[EtcdSession]:
        """See `Metadata.session`; a lease of `ttl_ms`, rounded up to seconds, renewed three times in it."""
        session = EtcdSession(self, key, data, ttl_s=max(1, -(-ttl_ms // 1000)))
        await session.begin()
        renewing = asyncio.create_task(session.renew_forever(), name=f"session {key}")
        try:
            yield session
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            await session.end()


class EtcdSession:
    """A key attached to a lease."""

    def __init__(self, etcd: EtcdMetadata, key: str, data: bytes, *, ttl_s: int) -> None:
        self._etcd = etcd
        self._key = key
        self._data = data
        self._ttl_s = ttl_s
        self._lease: str | None = None
        self._revision = ABSENT
        self._held_until_s = 0.0
        self.loss_count = 0

    @property
    def is_held(self) -> bool:
        """See `Session.is_held`."""
        return self._lease is not None and time.monotonic() < self._held_until_s

    async def begin(self) -> None:
        """Write the key. An earlier process of this name may have died with it: wait until its lease must have run
        out. Raises SessionTaken."""
        deadline_s = time.monotonic() + self._ttl_s + CALL_TIMEOUT_S
        while not await self._write():
            if time.monotonic() > deadline_s:
                raise SessionTaken(f"{self._key} is held by another session")
            await asyncio.sleep(RETRY_S)

    async def renew_forever(self) -> None:
        """Keep the key there."""
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_TTL if self.is_held else RETRY_MAX_S / 4)
            try:
                if self._lease is None:
                    await self._write()
                elif not await self._renew(self._lease):
                    self._lease = None
                    self.loss_count += 1
                    log.warning("the metadata session was lost; writing it again key=%s", self._key)
                    await self._write()
            except MetadataError as error:
                log.warning("metadata session not renewed key=%s error=%s", self._key, error)

    async def end(self) -> None:
        """Delete the key, if etcd can be reached; else the lease runs out."""
        if self._lease is not None:
            with suppress(MetadataError):
                await self._etcd._ask("/v3/lease/revoke", {"ID": self._lease})

    async def _renew(self, lease: str) -> bool:
        """Whether the lease, and the key with it, is still there."""
        asked_s = time.monotonic()
        answer = await self._etcd._ask("/v3/lease/keepalive", {"ID": lease})
        if int(answer["result"].get("TTL", 0)) <= 0:
            return False
        value = await self._etcd.get(self._key)
        if value is None or value.revision != self._revision:
            return False
        self._held_until_s = asked_s + self._ttl_s
        return True

    async def _write(self) -> bool:
        """Write the key under a new lease; False when another one's is there. Our own of before, whose lease is lost or
        whose write had an unknown outcome, is written over."""
        asked_s = time.monotonic()
        found = await self._etcd.get(self._key)
        if found is not None and found.data != self._data:
            return False
        granted = await self._etcd._ask("/v3/lease/grant", {"TTL": str(self._ttl_s)})
        lease = str(granted["ID"])
        revision = ABSENT if found is None else found.revision
        written = await self._etcd._change({self._key: revision}, {self._key: self._data}, lease)
        if written is None:
            return False
        self._lease, self._revision, self._held_until_s = lease, written, asked_s + self._ttl_s
        return True


def _message(text: bytes | bytearray) -> dict[str, Any]:
    """A message of etcd. Raises ValueError for what is none."""
    message = orjson.loads(text)
    if not isinstance(message, dict):
        raise ValueError("no JSON object")
    return message


def _answer(answer: dict[str, Any], status: int) -> dict[str, Any]:
    """An answer of etcd. Raises _Refused for an error, in each of the shapes that versions and streams have."""
    error = answer.get("error")
    if error is None and status == 200:
        return answer
    details = error if isinstance(error, dict) else answer
    code = int(details.get("grpc_code") or details.get("code") or 0)
    raise _Refused(code, str(details.get("message") or error or f"status {status}"))


def _base64(data: bytes) -> str:
    return b64encode(data).decode()


def _value(kv: Mapping[str, str]) -> Value:
    return Value(b64decode(kv.get("value", "")), int(kv["mod_revision"]))


def _behind(prefix: bytes) -> bytes:
    """The first key behind all that begin with a prefix, of keys in UTF-8."""
    return prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\0"
