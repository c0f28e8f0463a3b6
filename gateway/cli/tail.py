"""`mq tail`: follow topics over the WebSocket.

A lost connection is taken up again where it ended, by the cursors of the messages already printed: none is printed
twice, none is left out. Credit is returned when a frame has been printed, so a slow terminal slows only itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import aiohttp
import orjson
import typer

from gateway.cli.client import Client, checked_url, connected, refused, topic_path, unreachable
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    flush,
    parse_duration_ms,
    print_json,
    print_line,
    print_note,
    printable,
)

SUBSCRIPTION = "tail"
CREDIT = 5000
RECONNECT_AFTER_S = 1.0
RECONNECT_CLOSE_CODES = range(4000, 4500)
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Largest frame taken: one message of the largest record in base64, with room."""

Message = Mapping[str, object]


def tail(
    topics: Annotated[list[str], typer.Argument(help="One topic or more.", show_default=False)],
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="earliest; latest; an offset (-10: the last ten of each partition); a time (RFC 3339); how long ago "
            "(15m); or a cursor. [dim]default: latest, with --no-follow earliest[/dim]",
            metavar="WHERE",
        ),
    ] = None,
    count: Annotated[int | None, typer.Option("-n", "--count", min=1, help="Stop after so many messages.")] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Wait for more, or stop at the end.")] = True,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Print messages of topics as they come.

    [b]Examples[/b]

      mq tail orders
      mq tail orders payments --from 15m --json | jq .value
      mq tail orders --from earliest --no-follow
      mq tail orders --from -1 -n 1
    """
    where = from_ or ("latest" if follow else "earliest")
    asyncio.run(_Tail(topics, count, follow, as_json).run(checked_url(url), where))


class _Tail:
    """How far the topics have been printed, and when to stop."""

    def __init__(self, topics: list[str], count: int | None, follow: bool, as_json: bool) -> None:
        self._topics = topics
        self._left = count
        self._follow = follow
        self._print = print_json if as_json else _print_line
        self._next: dict[str, dict[str, int]] = {}  # topic, partition: the next offset
        self._epochs: dict[str, object] = {}

    async def run(self, url: str, where: str) -> None:
        """Print until done. A connection that is lost is made again, for as long as it takes."""
        async with connected(url) as client:
            start = await _start(client, self._topics, where)
        attempted = False
        async with aiohttp.ClientSession() as session:
            while True:
                try:
                    async with session.ws_connect(
                        f"{url}/ws/v1", max_msg_size=FRAME_BYTES_MAX, heartbeat=25, compress=0
                    ) as socket:
                        attempted = True
                        done, why = await self._converse(socket, self._next or start)
                        if done:
                            return
                except aiohttp.WSServerHandshakeError as error:
                    if error.status != 503:
                        raise CliError(f"{url} refused the socket with {error.status}: {error.message}") from error
                    why = "the server is stopping"
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    if not attempted:
                        raise unreachable(url) from error
                    why = str(error) or type(error).__name__
                print_note(f"connection lost ({why}); trying again")
                await asyncio.sleep(RECONNECT_AFTER_S)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse, start: object) -> tuple[bool, str]:
        """One connection from its subscribe to its end: whether all is printed, else why it ended."""
        subscribe: dict[str, object] = {
            "id": 1,
            "op": "subscribe",
            "sub": SUBSCRIPTION,
            "topics": self._topics,
            "from": start,
            "credit": min(CREDIT, self._left or CREDIT),
            "auto_credit": False,
        }
        if self._epochs:
            subscribe["epochs"] = self._epochs
        await socket.send_str(orjson.dumps(subscribe).decode())
        async for received in socket:
            if received.type is not aiohttp.WSMsgType.TEXT:
                break
            frame = orjson.loads(received.data)
            if frame.get("ok") is False or frame.get("op") == "error":
                raise refused(frame)
            if frame.get("id") == 1:
                self._epochs = frame["epochs"]
                self._remember(frame["cursor"])
            elif frame.get("op") == "messages":
                if self._print_all(frame["messages"]):
                    return True, ""
                permit = {"op": "permit", "sub": SUBSCRIPTION, "messages": len(frame["messages"])}
                await socket.send_str(orjson.dumps(permit).decode())
            elif frame.get("op") == "caught_up" and not self._follow:
                return True, ""
        code = socket.close_code
        if code is not None and code >= 4000 and code not in RECONNECT_CLOSE_CODES:
            raise CliError(f"the server closed the socket for good with code {code}")
        return False, "the server is stopping" if code == 4001 else f"close code {code}"

    def _print_all(self, messages: list[dict[str, object]]) -> bool:
        """Print one frame's messages; True when none is left to print."""
        printed = messages[: self._left]
        for message in printed:
            self._print(message)
        # A frame's messages are of one partition: the last one's cursor stands for all.
        self._remember(str(printed[-1]["cursor"]))
        if self._left is not None:
            self._left -= len(printed)
        flush()
        return self._left == 0

    def _remember(self, cursor: str) -> None:
        for place in cursor.split(";"):
            name, offset = place.rsplit("=", 1)
            topic, partition = name.rsplit(":", 1)
            self._next.setdefault(topic, {})[partition] = int(offset)


async def _start(client: Client, topics: list[str], where: str) -> object:
    """The `from` of a subscription, from what a person writes. Raises CliError."""
    if where in ("earliest", "latest") or "=" in where:
        return where
    if where.removeprefix("-").isdecimal():
        return {topic: await _offsets(client, topic, int(where)) for topic in topics}
    try:
        return {"timestamp": max(0, int(time.time() * 1000) - parse_duration_ms(where))}
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(where)
    except ValueError:
        raise CliError(
            f"--from {where}: use earliest, latest, an offset, a time, or how long ago (15m)", USAGE
        ) from None
    if moment.tzinfo is None:
        raise CliError(f"--from {where}: a time needs its offset from UTC, such as {where}Z", USAGE)
    return {"timestamp": max(0, int(moment.timestamp() * 1000))}


async def _offsets(client: Client, topic: str, wanted: int) -> dict[str, int]:
    """The wanted offset in each partition, or the nearest there is; negative ones count from the end."""
    described = await client.get(f"/mq/v1/topics/{topic_path(topic)}")
    offsets = {}
    rows = described["offsets"]
    assert isinstance(rows, list)
    for row in rows:
        low, high = row["beginning_offset"], row["end_offset"]
        offsets[str(row["partition"])] = min(max(low, wanted if wanted >= 0 else high + wanted), high)
    return offsets


def _print_line(message: Message) -> None:
    """One message for people: when, where, key, tag, and its value."""
    timestamp_ms = message["timestamp"]
    assert isinstance(timestamp_ms, int)
    try:
        when = datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
    except (OverflowError, ValueError):
        when = str(timestamp_ms)
    parts = [when, f"{message['topic']}/{message['partition']}@{message['offset']}"]
    if (key := _shown(message, "key")) is not None:
        parts.append(f"key={key}")
    if (tag := message.get("tag")) is not None:
        parts.append(f"tag={tag}")
    parts.append(_shown(message, "value") or "null")
    print_line(printable(" ".join(parts)))


def _shown(message: Message, name: str) -> str | None:
    """A key or value as text, whichever of its forms the message has."""
    if (text := message.get(f"{name}_text")) is not None:
        return str(text)
    if (encoded := message.get(f"{name}_b64")) is not None:
        return f"base64:{encoded}"
    value = message.get(name)
    return value if isinstance(value, str) or value is None else orjson.dumps(value).decode()
