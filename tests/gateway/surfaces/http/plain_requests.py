"""Plain requests on raw sockets, for the tests of the fast path."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import TypeVar

import pytest

from gateway.surfaces.http.connection import Client
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.fast_path import FastPath, Plain
from tests.gateway.security.kit import served
from tests.waiting import PATIENCE_S

Said = TypeVar("Said")

JSON = "application/vnd.kafka.json.v2+json"
ONE = b'{"records":[{"key":"k","value":{"a":1}}]}'
ORDINARY = "X-Unheard-Of: 1"  # no header of the fast path's list


def request(
    body: bytes = ONE,
    *headers: str,
    target: str = "/topics/orders",
    content_type: str | None = JSON,
    method: str = "POST",
) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"Content-Type: {content_type}"] if content_type is not None else []
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The head and the body of the next answer."""
    async with asyncio.timeout(PATIENCE_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        if "Transfer-Encoding: chunked\r\n" in head:
            return head, await reader.readuntil(b"0\r\n\r\n")
        length = re.search(r"(?i)content-length: (\d+)", head)
        assert length is not None
        return head, await reader.readexactly(int(length[1]))


async def warmed(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that has had its first answer: the next request may take the fast path."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(ONE, ORDINARY))
    assert (await answer(reader))[0].startswith("HTTP/1.1 200")
    await asyncio.sleep(0.01)
    return reader, writer


async def asked(gateway: Gateway, *requests: bytes) -> list[tuple[str, bytes]]:
    """The answers to requests that are sent one after the other on one connection."""
    answers = []
    async with served(gateway) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for sent in requests:
            writer.write(sent)
            answers.append(await answer(reader))
        writer.close()
    return answers


def noted(patch: pytest.MonkeyPatch, said: Callable[[Plain, bytes], Said]) -> list[Said]:
    """What is said of each request that takes the fast path from now on, from its meaning and its body."""
    notes: list[Said] = []
    take = FastPath.take

    def noting(self: FastPath, meaning: Plain, data: bytes, start: int, client: Client) -> bool:
        is_taken = take(self, meaning, data, start, client)
        if is_taken:
            notes.append(said(meaning, data[start:]))
        return is_taken

    patch.setattr(FastPath, "take", noting)
    return notes
