"""`mq tail`: follow topics over the WebSocket.

A lost connection is taken up again where it ended, by the cursors of the messages already printed: none is printed
twice, none is left out. Credit is returned when a frame has been printed, so a slow terminal slows only itself.

With `--group` it is a consumer of that group. A message is acked when it has been printed; one whose ack was lost with
the connection is printed again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import orjson
import typer
from rich.text import Text

from gateway.cli.client import (
    Client,
    Server,
    connected,
    failure,
    path_segment,
    refused,
    refused_socket,
    server_of,
    session,
)
from gateway.cli.complete import group_names, topic_names
from gateway.cli.terminal import (
    URL_DEFAULT,
    USAGE,
    CliError,
    Json,
    Url,
    coloured_json,
    flush,
    json_text,
    parsed_json,
    print_json,
    print_line,
    print_note,
    print_styled,
    printable,
    time_ms,
    time_shown,
)

if TYPE_CHECKING:
    import aiohttp

SUBSCRIPTION = "tail"
LAST_ACK_ID = 2
CREDIT = 5000
RECONNECT_AFTER_S = 1.0
RECONNECT_CLOSE_CODES = range(4000, 4500)
FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Largest frame taken: one message of the largest record in base64, with room."""

Message = Mapping[str, object]


class Mode(Enum):
    """How a group consumes."""

    STREAM = "stream"
    QUEUE = "queue"


def tail(
    topics: Annotated[
        list[str], typer.Argument(help="One topic or more.", show_default=False, autocompletion=topic_names)
    ],
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
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            help="Consume as a member of this group; what was printed is acked.",
            autocompletion=group_names,
        ),
    ] = None,
    mode: Annotated[
        Mode,
        typer.Option(
            help="In a group: stream (partitions are shared, offsets committed) or queue (records one by one)."
        ),
    ] = Mode.STREAM,
    tags: Annotated[
        list[str] | None,
        typer.Option("--tag", help="Only with this tag; repeatable: any of them. In a group the others count as done."),
    ] = None,
    partitions: Annotated[
        list[int] | None, typer.Option("--partition", "-p", min=0, help="Only of this partition; repeatable.")
    ] = None,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Print messages of topics as they come.

    [b]Examples[/b]

      mq tail orders
      mq tail orders payments --from 15m --json | jq .value
      mq tail orders --from earliest --no-follow
      mq tail orders --from -1 -n 1
      mq tail orders --tag paid --partition 0
      mq tail orders --group billing --mode queue --from earliest
    """
    where = from_ or ("latest" if follow else "earliest")
    if group is not None and not follow and mode is Mode.QUEUE:
        raise CliError("--no-follow needs --mode stream: a queue has no end, others may give records back", USAGE)
    if group is not None and partitions:
        raise CliError("--partition needs a reader: a group shares out the partitions itself", USAGE)
    printer = print_json if as_json else _print_coloured if sys.stdout.isatty() else _print_line
    wanted = _Wanted(topics, tags or (), frozenset(partitions or ()))
    asyncio.run(_Tail(wanted, count, follow, printer, group, mode).run(server_of(url), where))


class _Wanted(NamedTuple):
    """What to print. `tags` and `partitions` empty: all."""

    topics: Sequence[str]
    tags: Sequence[str]
    partitions: frozenset[int]


class _Tail:
    """How far the topics have been printed, and when to stop."""

    def __init__(
        self,
        wanted: _Wanted,
        count: int | None,
        follow: bool,
        printer: Callable[[Message], None],
        group: str | None,
        mode: Mode,
    ) -> None:
        self._group = group
        self._mode = mode
        self._member: object = None
        self._done: dict[tuple[object, object], str] = {}  # in a group: the cursor to commit, by partition
        self._wanted = wanted
        self._left = count
        self._follow = follow
        self._print = printer
        self._next: dict[str, dict[str, int]] = {}  # topic, partition: the next offset
        self._epochs: dict[str, object] = {}

    async def run(self, server: Server, where: str) -> None:
        """Print until done. A connection that is lost is made again, for as long as it takes."""
        import aiohttp

        url = server.url
        async with connected(url) as client:
            start = await _start(client, self._wanted.topics, where)
        if self._group is not None and not (start in ("earliest", "latest") or "timestamp" in start):
            raise CliError(
                f"--from {where}: a group begins at earliest, latest or a time; 'mq group reset' moves it", USAGE
            )
        attempted = False
        async with session(server, timeout_s=None) as opened:
            while True:
                try:
                    async with opened.ws_connect(
                        f"{url}/ws/v1", max_msg_size=FRAME_BYTES_MAX, heartbeat=25, compress=0
                    ) as socket:
                        attempted = True
                        done, why = await self._converse(socket, start)
                        if done:
                            return
                except aiohttp.WSServerHandshakeError as error:
                    if error.status != 503:
                        raise refused_socket(url, error.status) from error
                    why = "the server is stopping"
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    if not attempted:
                        raise failure(url, error) from error
                    why = "the server cannot be reached"
                print_note(f"connection lost ({why}); trying again")
                await asyncio.sleep(RECONNECT_AFTER_S)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse, start: object) -> tuple[bool, str]:
        """One connection from its subscribe to its end: whether all is printed, else why it ended."""
        import aiohttp

        subscribe: dict[str, object] = {
            "id": 1,
            "op": "subscribe",
            "sub": SUBSCRIPTION,
            "topics": self._wanted.topics,
            "credit": min(CREDIT, self._left or CREDIT),
            "auto_credit": False,
        }
        if self._wanted.tags:
            subscribe["filter"] = f"tag:{'||'.join(self._wanted.tags)}"
        if self._group is None:
            subscribe["from"] = self._next or start
            if self._epochs:
                subscribe["epochs"] = self._epochs
        else:
            subscribe |= {"group": self._group, "mode": self._mode.value, "start": start}
            if self._member is not None:
                subscribe["member"] = self._member
        await socket.send_str(orjson.dumps(subscribe).decode())
        async for received in socket:
            if received.type is not aiohttp.WSMsgType.TEXT:
                break
            frame = parsed_json(received.data)
            if frame.get("ok") is False or frame.get("op") == "error":
                raise refused(frame)
            if frame.get("id") == 1:
                self._epochs = frame["epochs"]
                self._member = frame.get("member")
                if self._group is None:
                    self._remember(frame["cursor"])
            elif frame.get("id") == LAST_ACK_ID:
                return True, ""
            elif frame.get("op") == "messages":
                printed = self._print_all(frame["messages"])
                is_last = self._left == 0
                if self._group is not None and printed:
                    await self._ack(socket, printed, is_last)
                if is_last:
                    if self._group is None:
                        return True, ""
                    continue  # until the ack is answered
                permit = {"op": "permit", "sub": SUBSCRIPTION, "messages": len(frame["messages"])}
                await socket.send_str(orjson.dumps(permit).decode())
            elif frame.get("op") == "caught_up" and not self._follow:
                if not self._done:
                    return True, ""
                last = {"op": "ack", "id": LAST_ACK_ID, "sub": SUBSCRIPTION, "cursor": ";".join(self._done.values())}
                await socket.send_str(orjson.dumps(last).decode())
        code = socket.close_code
        if code is not None and code >= 4000 and code not in RECONNECT_CLOSE_CODES:
            raise CliError(f"the server closed the socket with code {code}, which forbids to connect again")
        return False, "the server is stopping" if code == 4001 else f"close code {code}"

    async def _ack(self, socket: aiohttp.ClientWebSocketResponse, printed: Sequence[Message], is_last: bool) -> None:
        """Done with these. The last ack of all is answered when it is durable, and speaks for those before it."""
        ack: dict[str, object] = {"op": "ack", "sub": SUBSCRIPTION}
        if self._mode is Mode.QUEUE:
            ack["receipts"] = [message["receipt"] for message in printed]
        else:
            message = printed[-1]  # a frame's messages are of one partition
            self._done[message["topic"], message["partition"]] = str(message["cursor"])
            ack["cursor"] = ";".join(self._done.values()) if is_last else message["cursor"]
        if is_last:
            ack["id"] = LAST_ACK_ID
        await socket.send_str(orjson.dumps(ack).decode())

    def _print_all(self, messages: list[dict[str, object]]) -> Sequence[Message]:
        """Print one frame's messages, as many as are wanted; those that were."""
        # A frame's messages are of one partition: the first one's stands for all, and so does the last one's cursor.
        is_wanted = not self._wanted.partitions or bool(
            messages and messages[0]["partition"] in self._wanted.partitions
        )
        taken = messages[: self._left] if is_wanted else messages
        printed = taken if is_wanted else []
        for message in printed:
            self._print(message)
        if self._group is None and taken:
            self._remember(str(taken[-1]["cursor"]))
        if self._left is not None:
            self._left -= len(printed)
        flush()
        return printed

    def _remember(self, cursor: str) -> None:
        for where in cursor.split(";"):
            name, offset = where.rsplit("=", 1)
            topic, partition = name.rsplit(":", 1)
            self._next.setdefault(topic, {})[partition] = int(offset)


async def _start(client: Client, topics: Sequence[str], where: str) -> str | dict[str, object]:
    """The `from` of a subscription, from what a person writes. Raises CliError."""
    if where in ("earliest", "latest") or "=" in where:
        return where
    if where.removeprefix("-").isdecimal():
        return {topic: await _offsets(client, topic, int(where)) for topic in topics}
    return {"timestamp": time_ms(where, "--from", "earliest, latest, an offset, ")}


async def _offsets(client: Client, topic: str, wanted: int) -> dict[str, int]:
    """The wanted offset in each partition, or the nearest there is; negative ones count from the end."""
    described = await client.get(f"/mq/v1/topics/{path_segment(topic)}")
    offsets = {}
    rows = described["offsets"]
    assert isinstance(rows, list)
    for row in rows:
        low, high = row["beginning_offset"], row["end_offset"]
        offsets[str(row["partition"])] = min(max(low, wanted if wanted >= 0 else high + wanted), high)
    return offsets


def _parts(message: Message) -> tuple[str, str, list[str], str]:
    """One message for people: when, where, key and tag, and its value."""
    try:
        when = time_shown(message["timestamp"])
    except (OverflowError, ValueError):
        when = str(message["timestamp"])
    names = []
    if (key := _shown(message, "key")) is not None:
        names.append(f"key={key}")
    if (tag := message.get("tag")) is not None:
        names.append(f"tag={tag}")
    where = f"{message['topic']}/{message['partition']}@{message['offset']}"
    return when, where, names, _shown(message, "value") or "null"


def _print_line(message: Message) -> None:
    when, where, names, value = _parts(message)
    print_line(printable(" ".join((when, where, *names, value))))


def _print_coloured(message: Message) -> None:
    when, where, names, value = _parts(message)
    about = Text.assemble(
        (when, "dim"), " ", (where, "cyan"), " ", *((f"{printable(name)} ", "yellow") for name in names)
    )
    print_styled(about + coloured_json(printable(value)))


def _shown(message: Message, name: str) -> str | None:
    """A key or value as text, whichever of its forms the message has."""
    if (text := message.get(f"{name}_text")) is not None:
        return str(text)
    if (encoded := message.get(f"{name}_b64")) is not None:
        return f"base64:{encoded}"
    value = message.get(name)
    return value if isinstance(value, str) or value is None else json_text(value)
