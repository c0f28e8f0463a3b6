"""gateway.cli.client: every way in which a request can fail ends in one sentence of ours that says what to do."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from gateway.cli import client
from gateway.cli.client import refused_socket
from gateway.cli.terminal import REFUSED, UNREACHABLE
from loadtest.certificates import write_certificate
from tests.gateway.cli.command import mq

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIBRARY_WORDS = ("aiohttp", "Errno", "ssl:", "SSL:", "Connect call", "Cannot connect", "Traceback", "Exception", "None")


@contextmanager
def listening(talk: Talk, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Host and port of a server that does this with each connection."""
    ports: list[int] = []
    begun = Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=tls)
        ports.append(server.sockets[0].getsockname()[1])
        begun.set()

    def run() -> None:
        loop.run_until_complete(serve())
        loop.run_forever()

    thread = Thread(target=run, daemon=True)
    thread.start()
    assert begun.wait(10)
    yield f"127.0.0.1:{ports[0]}"
    loop.call_soon_threadsafe(loop.stop)
    thread.join()


async def close(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"220 mail.example ESMTP\r\n\r\n")
    writer.close()


async def no_tls(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    writer.close()


async def another_program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 6\r\nConnection: close\r\n\r\n<html>")
    writer.close()


async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
    writer.close()


async def silence(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


def failed(url: str, *arguments: str, code: int = UNREACHABLE, **environment: str) -> str:
    """What a command says when it fails; checked for words that are not ours."""
    for command in (["topic", "list"], ["tail", "orders"]):
        done = mq(*arguments, *command, "--url", url, **environment)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert not [word for word in LIBRARY_WORDS if word in done.stderr], done.stderr
        assert url in done.stderr
    return done.stderr


def test_nothing_listens() -> None:
    assert "mq serve --data" in failed("http://127.0.0.1:1")
    assert "mq serve --data" in failed("http://localhost:1")


def test_a_name_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "the name mq.example is not known" in failed("http://mq.example:8082")


@pytest.mark.parametrize("talk", [close, babble, half])
def test_what_listens_is_no_server_of_ours(talk: Talk) -> None:
    with listening(talk) as address:
        assert "is it an mq server" in failed(f"http://{address}")


def test_another_program_answers() -> None:
    with listening(another_program) as address:
        done = mq("topic", "list", "--url", f"http://{address}")
        assert (done.returncode, "is it an mq server" in done.stderr) == (UNREACHABLE, True)
        done = mq("tail", "orders", "--url", f"http://{address}")
        assert (done.returncode, "no WebSocket" in done.stderr) == (UNREACHABLE, True)


def test_no_answer_comes_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "TIMEOUT_S", 0.2)
    with listening(silence) as address:
        done = mq("topic", "list", "--url", f"http://{address}")
    assert (done.returncode, "too long" in done.stderr) == (UNREACHABLE, True)


def test_tls_where_there_is_none_and_certificates_that_are_not_trusted(tmp_path: Path) -> None:
    with listening(no_tls) as address:
        assert "http://" in failed(f"https://{address}")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    write_certificate(cert, key, days=-1)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(cert, key)
    with listening(close, tls) as address:
        assert "mq --ca FILE" in failed(f"https://{address}")
        assert "expired" in failed(f"https://{address}", "--ca", str(cert))


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [(401, REFUSED, "MQ_TOKEN"), (403, REFUSED, "scope"), (404, UNREACHABLE, "mq server"), (500, REFUSED, "log")],
)
def test_a_socket_that_is_refused_says_what_to_do(status: int, code: int, words: str) -> None:
    error = refused_socket("http://a", status)
    assert (error.exit_code, words in str(error)) == (code, True)
