"""A gateway served as in production, over a fake broker, and raw sockets to it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from aiohttp import web

from gateway.auth.acl import Acl
from gateway.auth.authenticator import PolicyAuthenticator
from gateway.auth.policy import Policy
from gateway.auth.tokens import TokenRecord, mint
from gateway.main.application import build_application
from gateway.main.listener import listening
from gateway.main.tls import ServerTls
from gateway.surfaces.http.admission import rates_of
from gateway.surfaces.http.connection import ConnectionLimiter
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.routes import Row
from tests.clock import START_MS, FakeClock
from tests.gateway.fake_broker import FakeBroker, fake_gateway


@dataclass(frozen=True)
class Secured:
    """A gateway that asks for tokens, and tokens for it. `wrong` is none of them, `expired` was one."""

    gateway: Gateway
    broker: FakeBroker
    clock: FakeClock
    authenticator: PolicyAuthenticator
    tokens: dict[str, str]
    policy: Policy


async def secured(scopes: dict[str, Sequence[str]], *, acl: Acl | None = None, **settings: object) -> Secured:
    """A gateway with the topics `orders` and `other`, and one token for each principal and its scopes."""
    clock = FakeClock()
    gateway, broker = fake_gateway(clock, auth__enabled=True, **settings)
    await broker.create_topic("orders", 2)
    await broker.create_topic("other", 2)
    made = {name: mint(name, texts, now_ms=START_MS - 10_000) for name, texts in scopes.items()}
    tokens = {name: token for name, (token, _) in made.items()}
    expired, record = mint("expired", ["admin"], now_ms=START_MS - 10_000, expires_ms=START_MS - 1)
    wrong, _ = mint("wrong", ["admin"], now_ms=START_MS)
    policy = policy_of([record, *(record for _, record in made.values())], acl)
    authenticator = PolicyAuthenticator(policy, clock=clock, now_ms=clock.now_ms, token_in_query=False)
    gateway = replace(gateway, authenticator=authenticator, rates=rates_of(gateway.limits))
    return Secured(gateway, broker, clock, authenticator, {**tokens, "wrong": wrong, "expired": expired}, policy)


def policy_of(records: Sequence[TokenRecord], acl: Acl | None = None) -> Policy:
    return Policy(
        tokens={record.id: record for record in records},
        scopes={record.id: record.parsed_scopes() for record in records},
        acl=acl or Acl(),
    )


@asynccontextmanager
async def served(
    gateway: Gateway, *, rows: Sequence[Row] | None = None, tls: ServerTls | None = None
) -> AsyncIterator[int]:
    """The port where the gateway answers, by the same code as in `mq serve`."""
    application = build_application(gateway) if rows is None else build_application(gateway, rows)
    async with serving(application, gateway, tls=tls) as port:
        yield port


@asynccontextmanager
async def serving(
    application: web.Application, gateway: Gateway, *, tls: ServerTls | None = None
) -> AsyncIterator[int]:
    """As `served`, for an application of one's own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        async with listening(application, gateway, ConnectionLimiter(gateway.limits, gateway.stats), listener, tls):
            yield listener.getsockname()[1]


async def talk(port: int, sent: bytes, *, timeout_s: float = 5.0, half_close: bool = False) -> bytes:
    """Everything the server says to these bytes until it closes or says nothing more for a while."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    heard = b""
    try:
        writer.write(sent)
        if half_close:
            writer.write_eof()
        async with asyncio.timeout(timeout_s):
            while chunk := await reader.read(65_536):
                heard += chunk
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return heard
