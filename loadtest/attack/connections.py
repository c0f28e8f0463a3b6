"""Attacks by connections that say nothing, little, slowly, or half of what they announced."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from loadtest.attack.attack import SECURED, Attack, Victim
from loadtest.attack.attacker import CLOSED, NO_ANSWER, OPEN, Attacker, Connection, status_of
from loadtest.bench.payloads import JSON_TYPE

MB = 1_000_000
TOPIC = "uploads"
PIECE = b"x" * 65_536
CUT_WITHIN_S = 2
"""How much longer than its setting the server may take to end a slow connection."""


async def idle(attacker: Attacker, *, strangers: int, handles: int, seconds: int) -> None:
    """More connections than the server may have handles."""
    held = [connection for number in range(strangers) if (connection := await attacker.connect(number))]
    await asyncio.sleep(seconds)
    await asyncio.gather(*(_count_end(attacker, *connection) for connection in held))
    if strangers > handles and attacker.seen[OPEN] >= handles:
        attacker.wrong(f"{attacker.seen[OPEN]} of {strangers} are open with {handles} handles")


async def _count_end(attacker: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Count what a connection was told since it was made."""
    try:
        async with asyncio.timeout(0.2):
            attacker.saw(status_of(await reader.read(2**12)) or CLOSED)
    except TimeoutError:
        attacker.saw(OPEN)
    except ConnectionError:
        attacker.saw(CLOSED)
    finally:
        writer.transport.abort()


async def slow_headers(attacker: Attacker, *, connections: int, seconds: int, cut_after_s: int) -> None:
    """A byte of a header a second."""
    await _slow(attacker, b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX-A: ", connections, seconds, cut_after_s)


async def slow_bodies(attacker: Attacker, *, connections: int, seconds: int, cut_after_s: int) -> None:
    """A byte of a body a second."""
    headers = {"Content-Type": JSON_TYPE, "Content-Length": str(MB)}
    first = attacker.head("POST", f"/topics/{TOPIC}", headers) + b'{"records":[{"value":"'
    await _slow(attacker, first, connections, seconds, cut_after_s)


async def make_topic(attacker: Attacker, **_: int) -> None:
    """The topic that uploads go to."""
    await attacker.make_topic(TOPIC)


async def _slow(
    attacker: Attacker, first: bytes, connections: int, seconds: int, cut_after_s: int, *, more: bytes = b"a",
    is_plain: bool = False,
) -> None:  # fmt: skip
    async def one(number: int) -> None:
        lasted_s = await attacker.trickle(number, first, seconds=seconds, more=more, is_plain=is_plain)
        if seconds > cut_after_s + CUT_WITHIN_S and (lasted_s is None or lasted_s > cut_after_s + CUT_WITHIN_S):
            attacker.wrong(f"a slow connection was open for more than {cut_after_s} s")

    await asyncio.gather(*map(one, range(connections)))


async def aborted_uploads(attacker: Attacker, *, uploads: int, at_a_time: int, announced_mb: int, sent_mb: int) -> None:
    """Announce a body, send part of it and close."""

    async def one(number: int) -> None:
        connection = await _upload(attacker, number, announced_mb * MB, sent_mb * MB)
        if connection is not None:
            await _close(attacker, *connection)

    await attacker.each(uploads, one, at_a_time=at_a_time)


async def strangers_bodies(
    attacker: Attacker, *, strangers: int, announced_mb: int, sent_mb: int, seconds: int
) -> None:
    """Who may not send here fills no budget of those who may."""
    held = await asyncio.gather(
        *(_upload(attacker, number, announced_mb * MB, sent_mb * MB, is_stranger=True) for number in range(strangers))
    )
    body = b'{"records":[{"value":"' + PIECE * 30 + b'"}]}'  # longer than what arrives with its head
    for _ in range(seconds):
        answer = await attacker.ask("POST", f"/topics/{TOPIC}", body=body, headers={"Content-Type": JSON_TYPE})
        if answer.status != 200:
            attacker.wrong(f"a large send of a client with the right to it: {answer.status}")
        await asyncio.sleep(1)
    await asyncio.gather(*(_close(attacker, *connection) for connection in held if connection))


async def _upload(
    attacker: Attacker, number: int, announced_bytes: int, sent_bytes: int, *, is_stranger: bool = False
) -> Connection | None:
    """A connection on which part of a body is sent, or as much of it as the server took in time."""
    connection = await attacker.connect(number)
    if connection is None:
        return None
    _, writer = connection
    headers = {"Content-Type": JSON_TYPE, "Content-Length": str(announced_bytes)}
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(20):
            writer.write(attacker.head("POST", f"/topics/{TOPIC}", headers, is_stranger=is_stranger))
            writer.write(b'{"records":[{"value":"')
            for _ in range(sent_bytes // len(PIECE)):
                writer.write(PIECE)
                await writer.drain()
    return connection


async def _close(attacker: Attacker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once, and count what was said before."""
    heard = b""
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(0.01):
            heard = await reader.read(2**12)
    attacker.saw(status_of(heard) or "given up by us")
    writer.transport.abort()


async def tls_handshakes(
    attacker: Attacker, *, silent: int, slow: int, handshakes: int, seconds: int, cut_after_s: int
) -> None:
    """Handshakes that do not begin, that trickle, and many that are whole."""
    hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of a ClientHello of 512 bytes

    async def whole(number: int) -> None:
        connection = await attacker.connect(number)
        if connection is not None:
            attacker.saw("handshakes made")
            connection[1].transport.abort()

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_slow(attacker, b"", silent, seconds, cut_after_s, more=b"", is_plain=True))
        tasks.create_task(_slow(attacker, hello, slow, seconds, cut_after_s, more=b"\x00", is_plain=True))
        tasks.create_task(attacker.each(handshakes, whole, at_a_time=16))


async def renegotiation(attacker: Attacker, *, connections: int) -> None:
    """`openssl s_client` asks for a new handshake on a connection of TLS 1.2."""
    where = f"{attacker.target.host}:{attacker.target.port}"
    command = ("openssl", "s_client", "-connect", where, "-tls1_2", "-CAfile", str(attacker.target.certificate))

    async def one(_: int) -> None:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(20):
                await process.stdout.readuntil(b"---\nCertificate chain")
                process.stdin.write(b"R\n")
                process.stdin.close()
                said = await process.stdout.read()
                await process.wait()  # before it may be killed: what has ended would be reaped behind asyncio's back
        except (TimeoutError, asyncio.IncompleteReadError):
            attacker.saw(NO_ANSWER)
            attacker.wrong("openssl did not come to an end")
            return
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if b"RENEGOTIATING" not in said:
            attacker.wrong("openssl did not ask for a new handshake")
        elif b"no renegotiation" in said:
            attacker.saw("renegotiation refused")
        else:
            attacker.wrong(f"a new handshake on an open connection: {said[-200:]!r}")

    await attacker.each(connections, one, at_a_time=4)


def few_handles(count: int) -> Victim:
    """A server whose process may have so many files and sockets."""
    return Victim(f"{count} handles", handle_limit=count)


ATTACKS = (
    Attack(
        name="idle-1024",
        tried="{strangers} connections that say nothing for {seconds} s, to a server with {handles} file handles",
        run=idle, victim=few_handles(1024),
        full={"strangers": 1_100, "handles": 1_024, "seconds": 18}, short=None,
    ),
    Attack(
        name="idle-300",
        tried="{strangers} connections that say nothing for {seconds} s, to a server with {handles} file handles",
        run=idle, victim=few_handles(300),
        full={"strangers": 1_100, "handles": 300, "seconds": 18}, short=None,
    ),
    Attack(
        name="slow-headers",
        tried="{connections} connections that send a byte of a header a second, for {seconds} s",
        run=slow_headers,
        full={"connections": 500, "seconds": 20, "cut_after_s": 15},
        short={"connections": 40, "seconds": 1, "cut_after_s": 15},
    ),
    Attack(
        name="slow-bodies",
        tried="{connections} connections that announce 1 MB and send a byte a second, for {seconds} s",
        run=slow_bodies, prepare=make_topic,
        full={"connections": 500, "seconds": 35, "cut_after_s": 30},
        short={"connections": 40, "seconds": 1, "cut_after_s": 30},
    ),
    Attack(
        name="aborted-uploads",
        tried="{uploads} requests that announce {announced_mb} MB, send {sent_mb} MB and close; {at_a_time} at a time",
        run=aborted_uploads, prepare=make_topic,
        full={"uploads": 700, "at_a_time": 50, "announced_mb": 16, "sent_mb": 8},
        short={"uploads": 20, "at_a_time": 10, "announced_mb": 16, "sent_mb": 2},
    ),
    Attack(
        name="strangers-bodies",
        tried="{strangers} callers without a token who announce {announced_mb} MB and send up to {sent_mb} MB each, "
        "while somebody with one sends records of 2 MB",
        run=strangers_bodies, prepare=make_topic, victim=SECURED,
        full={"strangers": 100, "announced_mb": 16, "sent_mb": 8, "seconds": 10},
        short={"strangers": 20, "announced_mb": 16, "sent_mb": 2, "seconds": 1},
    ),
    Attack(
        name="tls-handshakes",
        tried="{silent} TLS connections that say nothing, {slow} that send a byte of a hello a second, and "
        "{handshakes} whole handshakes",
        run=tls_handshakes, victim=SECURED,
        full={"silent": 300, "slow": 300, "handshakes": 2_000, "seconds": 15, "cut_after_s": 10},
        short={"silent": 20, "slow": 20, "handshakes": 30, "seconds": 1, "cut_after_s": 10},
    ),
    Attack(
        name="tls-renegotiation",
        tried="a new handshake asked for on each of {connections} open connections of TLS 1.2",
        run=renegotiation, victim=SECURED,
        full={"connections": 20}, short={"connections": 1},
    ),
)  # fmt: skip
