"""Attacks by what is sent: deep JSON, bombs, frames that are none, and two requests that look like one."""

from __future__ import annotations

import asyncio
import base64
import gzip
import random
import re
import zlib
from collections.abc import Iterator

import aiohttp
import crc32c
import orjson
import zstandard

from loadtest.attack.attack import Attack, MiB
from loadtest.attack.attacker import CLOSED, NO_ANSWER, OPEN, Attacker
from loadtest.attack.malformed import REFUSED
from loadtest.bench.payloads import BATCH_TYPE, JSON_TYPE
from store.record_batch import Record, encode

TOPIC = "bodies"
HIDDEN = "hidden"
FRAME_BOMB_MIB_MAX = 64
JSON_TYPE_V1 = "application/json"
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")


async def make_topics(attacker: Attacker, **_: int) -> None:
    """The topic that is sent to, and the one that nothing may reach."""
    await attacker.make_topic(TOPIC)
    await attacker.make_topic(HIDDEN)


# --------------------------------------------------------------------------------------------------- deep JSON


async def deep_json(attacker: Attacker, *, kib: int, times: int) -> None:
    """Brackets, wherever JSON is taken."""
    routes = [
        ("POST", f"/v3/clusters/{await _cluster(attacker)}/topics/{TOPIC}/records", JSON_TYPE_V1),
        ("POST", f"/v3/clusters/{await _cluster(attacker)}/topics/{TOPIC}/records:batch", JSON_TYPE_V1),
        ("POST", f"/topics/{TOPIC}", JSON_TYPE),
        ("POST", f"/mq/v1/topics/{TOPIC}/messages:batch", "application/x-ndjson"),
        ("POST", f"/mq/v1/topics/{TOPIC}/messages", "application/cloudevents+json"),
        ("POST", "/mq/v1/groups/g/messages:receive", JSON_TYPE_V1),
        ("PUT", "/mq/v1/topics/deep", JSON_TYPE_V1),
        ("POST", "/consumers/g", "application/vnd.kafka.v2+json"),
    ]
    asked = [(route, body) for route in routes for body in _brackets(kib * 1024)] * times

    async def one(number: int) -> None:
        (method, path, kind), body = asked[number]
        await attacker.ask(method, path, body=body, headers={"Content-Type": kind})

    await attacker.each(len(asked), one, at_a_time=4)
    for body in _brackets(kib * 1024):
        await _frame(attacker, body.decode())


def _brackets(byte_count: int) -> Iterator[bytes]:
    yield b"{" * byte_count
    yield b"[" * byte_count
    yield b'{"a":' * (byte_count // 5)
    yield b'{"records":[{"value":' + b"[" * (byte_count // 2) + b"]" * (byte_count // 2) + b"}]}"


async def _frame(attacker: Attacker, text: str) -> None:
    """The same as a frame of a WebSocket."""
    async with attacker.session.ws_connect("/ws/v1", max_msg_size=0) as socket:
        await socket.send_str(text)
        try:
            async with asyncio.timeout(20):
                frame = await socket.receive()
        except TimeoutError:
            attacker.saw(NO_ANSWER)
            return
        attacker.saw("error frame" if frame.type is aiohttp.WSMsgType.TEXT else CLOSED)


async def _cluster(attacker: Attacker) -> str:
    async with attacker.session.get("/v3/clusters") as response:
        return str((await response.json(content_type=None))["data"][0]["cluster_id"])


# ------------------------------------------------------------------------------------------------------- bombs


async def bombs(attacker: Attacker, *, mib: int, times: int) -> None:
    """Little that inflates to much: bodies of three codings, a compressed batch, a compressed frame."""
    zeros = b"0" * (mib * MiB)
    compressed = {
        "gzip": gzip.compress(zeros, 6),
        "deflate": zlib.compress(zeros, 6),
        "zstd": _zstd(zeros),
    }
    asked = [
        (path, {"Content-Type": kind, "Content-Encoding": coding}, body)
        for coding, body in compressed.items()
        for path, kind in (
            (f"/topics/{TOPIC}", JSON_TYPE),
            (f"/mq/v1/topics/{TOPIC}/messages:batch", "application/x-ndjson"),
        )
    ]
    asked.append((f"/topics/{TOPIC}/partitions/0", {"Content-Type": BATCH_TYPE}, _batch(compressed["zstd"])))
    asked *= times

    async def one(number: int) -> None:
        path, headers, body = asked[number]
        answer = await attacker.ask("POST", path, body=body, headers=headers)
        if answer.status == 200 and b"error_code" not in answer.body:
            attacker.wrong(f"a bomb was stored: {path} {headers}")

    await attacker.each(len(asked), one, at_a_time=8)
    await _frame_bomb(attacker, "0" * (min(mib, FRAME_BOMB_MIB_MAX) * MiB))


def _zstd(content: bytes) -> bytes:
    """A stream that does not say how long it is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(content) + stream.flush()


def _batch(section: bytes) -> bytes:
    """A RecordBatch whose records are this zstd stream."""
    made = encode([Record(None, b"x", 1_767_225_600_000)])[:61] + section
    made[8:12] = (len(made) - 12).to_bytes(4, "big")
    made[22] |= 4  # zstd
    made[17:21] = crc32c.crc32c(bytes(made[21:])).to_bytes(4, "big")
    return bytes(made)


async def _frame_bomb(attacker: Attacker, text: str) -> None:
    async with attacker.session.ws_connect("/ws/v1", compress=15, max_msg_size=0) as socket:
        try:
            async with asyncio.timeout(20):
                await socket.send_str(text)
                frame = await socket.receive()
        except (TimeoutError, ConnectionError):
            attacker.saw(CLOSED if socket.closed else NO_ANSWER)
            return
        attacker.saw(f"socket closed with {frame.data}" if frame.type is aiohttp.WSMsgType.CLOSE else CLOSED)


# ------------------------------------------------------------------------------------------------------ frames


async def corrupt_frames(attacker: Attacker, *, sockets: int, seconds: int, seed: int) -> None:
    """What begins as a WebSocket and goes on as anything."""

    async def one(number: int) -> None:
        dice = random.Random(seed + number)
        key = base64.b64encode(dice.randbytes(16)).decode()
        upgrade = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
        }
        if number % 2:
            upgrade["Sec-WebSocket-Extensions"] = "permessage-deflate"
        sent = attacker.head("GET", "/ws/v1", upgrade) + b"".join(_frames(dice))
        heard = await attacker.talk(sent, number=number, timeout_s=seconds)
        attacker.saw(_close_code(heard.said) or (heard.word if heard.is_over else OPEN))

    await attacker.each(sockets, one, at_a_time=64)


FIRST_BYTES = (0x81, 0x82, 0x01, 0x00, 0x80, 0x88, 0x89, 0x8A, 0xC1, 0xF1, 0x83, 0xFF)


def _frames(dice: random.Random) -> Iterator[bytes]:
    """Headers of all kinds, lengths that are right, wrong and giant, text that is no UTF-8."""
    for _ in range(dice.randint(1, 5)):
        first = dice.choice((*FIRST_BYTES, dice.randrange(256)))
        payload = dice.randbytes(dice.choice((0, 1, 20, 125)))
        length = dice.choice((len(payload), len(payload) + 1, 126, 127))
        mask = dice.choice((0x80, 0x80, 0x80, 0))
        frame = bytes((first, mask | length))
        if length >= 126:
            frame += dice.choice((2**63, 2**40, len(payload), 2**64 - 1)).to_bytes(8, "big")
        yield frame + (b"\0\0\0\0" if mask else b"") + payload


def _close_code(heard: bytes) -> str | None:
    """Of the last frame, where the server ended the socket with a code."""
    at = heard.rfind(b"\x88", heard.find(b"\r\n\r\n"))
    if not heard.startswith(b"HTTP/1.1 101") or at < 0 or len(heard) < at + 4:
        return None
    return f"socket closed with {int.from_bytes(heard[at + 2 : at + 4], 'big')}"


# --------------------------------------------------------------------------------------------------- smuggling


async def smuggling(attacker: Attacker, *, times: int) -> None:
    """Requests that two readers may cut apart in two ways, with another request hidden in them."""
    cases = list(REFUSED.items()) * times

    async def one(number: int) -> None:
        name, sent = cases[number]
        heard = await attacker.talk(sent, number=number)
        attacker.saw(heard.word)
        statuses = STATUS.findall(heard.said)
        if len(statuses) > 1 or any(not status.startswith(b"4") for status in statuses):
            attacker.wrong(f"{name}: {heard.said[:100]!r}")
        if not heard.is_over:
            attacker.wrong(f"{name}: the connection was not ended")

    await attacker.each(len(cases), one, at_a_time=8)
    async with attacker.session.get(f"/mq/v1/topics/{HIDDEN}/offsets") as response:
        ends = [one["end_offset"] for one in orjson.loads(await response.read())["partitions"]]
    if any(ends):
        attacker.wrong("a hidden request was carried out")


ATTACKS = (
    Attack(
        name="deep-json",
        tried="{kib} KiB of brackets in four forms to eight routes, {times} times, and as frames",
        run=deep_json, prepare=make_topics,
        full={"kib": 4096, "times": 2}, short={"kib": 256, "times": 1},
    ),
    Attack(
        name="bombs",
        tried="bodies, a batch and a frame that inflate to {mib} MiB, {times} times each, eight at a time",
        run=bombs, prepare=make_topics,
        full={"mib": 256, "times": 8}, short={"mib": 16, "times": 1},
    ),
    Attack(
        name="corrupt-frames",
        tried="{sockets} WebSockets that go on with frames that are none",
        run=corrupt_frames,
        full={"sockets": 2_000, "seconds": 5, "seed": 1}, short={"sockets": 60, "seconds": 1, "seed": 1},
    ),
    Attack(
        name="smuggling",
        tried=f"{len(REFUSED)} requests that are nearly HTTP, with another one hidden in them, {{times}} times",
        run=smuggling, prepare=make_topics,
        full={"times": 5}, short={"times": 1},
    ),
)  # fmt: skip
