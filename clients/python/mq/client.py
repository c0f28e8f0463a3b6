"""The client: one connection that carries any number of sends and subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from os import getpid
from types import TracebackType
from typing import Any, Literal, Self, TypeVar, overload

from mq.clock import Clock, LoopClock
from mq.connection import Connection, OnState, TokenSource
from mq.errors import Closed, MqError
from mq.http import RETRY_S, Http, segment
from mq.message import Receipt
from mq.middleware import Outgoing, SendMiddleware, wrapped
from mq.progress import Partitions
from mq.protocol import ConnectionState
from mq.queue import Queue
from mq.read import Reader, Start
from mq.record import BYTES, Record, encode, encode_plain
from mq.recurring import RecurringSchedules
from mq.schedules import Schedules
from mq.send import Acks, Sender, Sending
from mq.stream import COMMIT_INTERVAL_S, Commit, Stream
from mq.subscription import Subscription, What
from mq.topics import Topics
from mq.transport import AiohttpTransport, Transport
from mq.values import Duration, Instant, decoder, seconds

T = TypeVar("T")

PENDING_MAX = 100_000
CLOSE_S = 10.0
"""How long `close` waits for what is on its way."""


class Client:
    """See `mq.connect`. Everything of it is of the event loop that it was opened on, and of this process."""

    def __init__(
        self,
        transport: Callable[[], Transport],
        *,
        token: TokenSource | None = None,
        name: str | None = None,
        idempotent: bool = True,
        pending_max: int = PENDING_MAX,
        retry: Duration = RETRY_S,
        middleware: Sequence[SendMiddleware] = (),
        on_state: OnState | None = None,
        clock: Callable[[], Clock] = LoopClock,
    ) -> None:
        if pending_max < 1:
            raise MqError(f"pending_max: must be at least 1, and is {pending_max}")
        self._make_transport = transport
        self._make_clock = clock
        self._token = token
        self._name = name
        self._idempotent = idempotent
        self._pending_max = pending_max
        self._retry_s = seconds(retry, "retry")
        self._on_state = on_state
        self._send_through = wrapped(middleware, self._send_outgoing) if middleware else None
        self._subscriptions: set[Subscription[Any]] = set()
        self._next_sub = 1
        self._pid = 0  # not open yet
        self._is_closing = False
        self._transport: Transport
        self._clock: Clock
        self._connection: Connection
        self._sender: Sender
        self._http: Http

    async def _open(self) -> Self:
        if self._pid:
            raise MqError("this client was opened before: make another with mq.connect")
        self._pid = getpid()
        self._transport = self._make_transport()
        self._clock = self._make_clock()
        self._connection = connection = Connection(
            self._transport, self._clock, token=self._token, name=self._name, on_state=self._on_state
        )
        self._sender = Sender(
            connection, self._clock, idempotent=self._idempotent, pending_max=self._pending_max, retry_s=self._retry_s
        )
        self._http = Http(self._transport, connection, self._clock, retry_s=self._retry_s)
        try:
            await connection.open()
        except BaseException:
            await self.close()
            raise
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def __aenter__(self) -> Self:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def state(self) -> ConnectionState:
        """connecting, open, waiting (for the next attempt) or closed."""
        return self._connection.conversation.state if self._pid else "connecting"

    # --------------------------------------------------------------------------------------------------------- sending

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        partition: int | None = None,
        headers: Mapping[str, str | bytes | None] | None = None,
        tag: str | None = None,
        timestamp: Instant | None = None,
        delay: Duration | None = None,
        at: Instant | None = None,
        msg_id: str | None = None,
        schedule_key: str | None = None,
        message_group: str | None = None,
        queues: Sequence[str] | None = None,
        acks: Acks | None = None,
    ) -> Sending[Receipt]:
        """Send one record; await the receipt, which comes when the record is on disk (`acks="written"`: given to the
        system, which a power failure may lose).

        `value` and `key` are bytes, or whatever JSON can say; None is a tombstone. `delay` ("15m", seconds, timedelta)
        or `at` (aware datetime, epoch seconds) deliver it later; `schedule_key` is your name for it until then. See
        `Record` for the rest. What is sent in one turn of the event loop goes together, and in order.

        Raises QueueFull, Closed and what is wrong with the record at once; the receipt Refused and ConnectionLost.
        """
        if self._is_closing or self._pid != getpid():
            self._check_open()
        is_plain = (
            partition is None and headers is None and tag is None and timestamp is None and delay is None and at is None
            and msg_id is None and schedule_key is None and message_group is None and queues is None
        )  # fmt: skip
        if is_plain and self._send_through is None and not isinstance(value, BYTES) and not isinstance(key, BYTES):
            return self._sender.send(topic, encode_plain(value, key), acks)
        record = Record(
            value, key, partition, headers, tag, timestamp, delay, at, msg_id, schedule_key, message_group, queues
        )
        if self._send_through is None:
            return self._sender.send(topic, encode(record), acks)
        return self._sent_through(topic, [record], acks, _first)

    def send_many(self, topic: str, records: Iterable[Any], *, acks: Acks | None = None) -> Sending[list[Receipt]]:
        """Send records that are all checked, then stored together: all of them, or none. Each is a `Record`, or a plain
        value. Receipts come in their order."""
        self._check_open()
        given = [record if isinstance(record, Record) else Record(record) for record in records]
        if self._send_through is None:
            return self._sender.send_many(topic, [encode(record) for record in given], acks)
        return self._sent_through(topic, given, acks, _all)

    def send_raw(
        self, topic: str, batches: bytes, *, partition: int | None = None, acks: Acks | None = None
    ) -> Sending[list[Receipt]]:
        """Send Kafka RecordBatches (v2), end to end, as they are: what `Reader.raw` gives, or a Kafka library's
        encoder. One receipt for each batch; each goes whole to one partition."""
        self._check_open()
        return self._sender.send_raw(topic, batches, partition, acks)

    @property
    def is_full(self) -> bool:
        """Whether `send` would raise QueueFull."""
        return self._sender.is_full

    async def room(self) -> None:
        """Return when another send would be taken: for those who send without awaiting each receipt."""
        await self._sender.room()

    async def flush(self) -> None:
        """Return when everything that was sent is answered."""
        await self._sender.flush()

    def _sent_through(
        self, topic: str, records: list[Record], acks: Acks | None, pick: Callable[[list[Receipt]], Any]
    ) -> Sending[Any]:
        through = self._send_through
        assert through is not None
        sending: Sending[Any] = Sending(loop=asyncio.get_running_loop())
        count = len(records)
        self._sender.passes(count)

        async def go() -> None:
            try:
                receipts = await through(Outgoing(topic, records, acks))
            except Exception as error:
                if not sending.done():
                    sending.set_exception(error)
            else:
                if not sending.done():
                    sending.set_result(pick(receipts))
            finally:
                self._sender.passed(count)

        self._connection.spawn(go)
        return sending

    async def _send_outgoing(self, outgoing: Outgoing) -> list[Receipt]:
        return await self._sender.send_many(
            outgoing.topic, [encode(record) for record in outgoing.records], outgoing.acks
        )

    # ------------------------------------------------------------------------------------------------------- consuming

    @overload
    def read(
        self, topics: str | Sequence[str] = (), *, as_: type[T], pattern: str | None = None, start: Start = "latest",
        cursor: str | None = None, tags: Iterable[str] | None = None, credit: int | None = None,
        on_assigned: Callable[[Partitions], object] | None = None, on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[T]: ...  # fmt: skip

    @overload
    def read(
        self, topics: str | Sequence[str] = (), *, as_: None = None, pattern: str | None = None,
        start: Start = "latest", cursor: str | None = None, tags: Iterable[str] | None = None,
        credit: int | None = None, on_assigned: Callable[[Partitions], object] | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[Any]: ...  # fmt: skip

    def read(
        self,
        topics: str | Sequence[str] = (),
        *,
        as_: type[T] | None = None,
        pattern: str | None = None,
        start: Start = "latest",
        cursor: str | None = None,
        tags: Iterable[str] | None = None,
        credit: int | None = None,
        on_assigned: Callable[[Partitions], object] | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[Any]:
        """Read topics, or all whose names match `pattern`: `async for message in client.read("orders")`.

        It begins at `start` ("latest": what is stored from now on; "earliest"; a time), or at a `cursor` of another
        reader. `tags`: only records with one of these. `as_`: the type of values. Leaving the loop ends it.
        """
        return self._subscribed(  # type: ignore[no-any-return]
            Reader[Any](
                self._connection, self._clock, self._sub(), _what(topics, pattern, tags), decoder(as_),
                start=start, cursor=cursor, credit=credit, on_assigned=on_assigned, on_caught_up=on_caught_up,
                on_over=self._subscriptions.discard,
            )
        )  # fmt: skip

    @overload
    def inbox(
        self, topic: str, queue: str, *, as_: type[T], start: Literal["earliest", "latest"] = "latest",
        cursor: str | None = None, credit: int | None = None, on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[T]: ...  # fmt: skip

    @overload
    def inbox(
        self, topic: str, queue: str, *, as_: None = None, start: Literal["earliest", "latest"] = "latest",
        cursor: str | None = None, credit: int | None = None, on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[Any]: ...  # fmt: skip

    def inbox(
        self,
        topic: str,
        queue: str,
        *,
        as_: type[T] | None = None,
        start: Literal["earliest", "latest"] = "latest",
        cursor: str | None = None,
        credit: int | None = None,
        on_caught_up: Callable[[], object] | None = None,
    ) -> Reader[Any]:
        """Read a light queue of a topic: an inbox, a room, or `room/*`, all whose names begin so. As `read`; the place
        is kept by the reader, in its `cursor`, or by a device's group: `client.group("phone-7").inbox(...)`."""
        return self._subscribed(  # type: ignore[no-any-return]
            Reader[Any](
                self._connection, self._clock, self._sub(), What((topic,), queue=queue), decoder(as_),
                start=start, cursor=cursor, credit=credit, on_assigned=None, on_caught_up=on_caught_up,
                on_over=self._subscriptions.discard,
            )
        )  # fmt: skip

    def group(self, name: str) -> Group:
        """A consumer group."""
        self._check_open()
        return Group(self, name)

    def _sub(self) -> str:
        self._check_open()
        sub, self._next_sub = f"s{self._next_sub}", self._next_sub + 1
        return sub

    def _subscribed(self, subscription: Any) -> Any:
        self._subscriptions.add(subscription)
        return subscription

    # ------------------------------------------------------------------------------------------------------------ rest

    @property
    def schedules(self) -> Schedules:
        """Delayed records that wait."""
        return Schedules(self._checked_http())

    @property
    def recurring(self) -> RecurringSchedules:
        """Records that the server sends by a rule."""
        return RecurringSchedules(self._checked_http())

    @property
    def topics(self) -> Topics:
        """Create, list and delete topics."""
        return Topics(self._checked_http())

    @property
    def http(self) -> Http:
        """Any other route of the server."""
        return self._checked_http()

    async def close(self) -> None:
        """End the subscriptions, wait for the receipts of what was sent, then close the connection. What takes longer
        than 10 s is given up."""
        if self._is_closing or not self._pid:
            return
        if self._pid == getpid():
            try:
                async with asyncio.timeout(CLOSE_S):
                    await asyncio.gather(*(subscription.aclose() for subscription in list(self._subscriptions)))
                    self._is_closing = True
                    await self._sender.flush()  # also while there is no connection: it may come back in time
            except TimeoutError:
                pass
            self._is_closing = True
            await self._connection.close()
            await self._transport.close()

    def _checked_http(self) -> Http:
        self._check_open()
        return self._http

    def _check_open(self) -> None:
        if self._pid != getpid():
            if not self._pid:
                raise MqError("the client is not open yet: async with mq.connect(...) as client")
            raise MqError("this client was opened before the process forked: open another in each process")
        if self._is_closing:
            raise Closed("the client is closed: send inside `async with mq.connect(...)`")


class Group:
    """A consumer group: its members share the messages of topics."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    @overload
    def stream(
        self, topics: str | Sequence[str] = (), *, as_: type[T], pattern: str | None = None,
        start: Start | None = None, member: str | None = None, room: str | None = None, commit: Commit = "auto",
        commit_interval: Duration = COMMIT_INTERVAL_S, tags: Iterable[str] | None = None, credit: int | None = None,
        on_assigned: Callable[[Partitions], object] | None = None,
        on_revoked: Callable[[Partitions, bool], object] | None = None,
    ) -> Stream[T]: ...  # fmt: skip

    @overload
    def stream(
        self, topics: str | Sequence[str] = (), *, as_: None = None, pattern: str | None = None,
        start: Start | None = None, member: str | None = None, room: str | None = None, commit: Commit = "auto",
        commit_interval: Duration = COMMIT_INTERVAL_S, tags: Iterable[str] | None = None, credit: int | None = None,
        on_assigned: Callable[[Partitions], object] | None = None,
        on_revoked: Callable[[Partitions, bool], object] | None = None,
    ) -> Stream[Any]: ...  # fmt: skip

    def stream(
        self,
        topics: str | Sequence[str] = (),
        *,
        as_: type[T] | None = None,
        pattern: str | None = None,
        start: Start | None = None,
        member: str | None = None,
        room: str | None = None,
        commit: Commit = "auto",
        commit_interval: Duration = COMMIT_INTERVAL_S,
        tags: Iterable[str] | None = None,
        credit: int | None = None,
        on_assigned: Callable[[Partitions], object] | None = None,
        on_revoked: Callable[[Partitions, bool], object] | None = None,
    ) -> Stream[Any]:
        """Consume in order, each partition by one member: `async with group.stream("orders") as messages`.

        Asking for the next message says that the one before is done; what is done is committed every `commit_interval`
        and at the end. `start`: where a group that was never here begins ("latest" by default). `member`: a name under
        which a restarted program takes its own partitions again. `room`: the machine room that this member stands in,
        for a group that is shared out by rooms. `on_revoked` gets the partitions and whether another
        member has them already.
        """
        client = self._client
        return client._subscribed(  # type: ignore[no-any-return]
            Stream[Any](
                client._connection, client._clock, client._sub(), _what(topics, pattern, tags), decoder(as_),
                group=self.name, start=start, member=member, room=room, commit=commit,
                commit_interval_s=seconds(commit_interval, "commit_interval"), credit=credit,
                on_assigned=on_assigned, on_revoked=on_revoked, on_over=client._subscriptions.discard,
            )
        )  # fmt: skip

    @overload
    def inbox(
        self, topic: str, queue: str, *, as_: type[T], start: Literal["earliest", "latest"] | None = None,
        commit: Commit = "auto", commit_interval: Duration = COMMIT_INTERVAL_S, credit: int | None = None,
    ) -> Stream[T]: ...  # fmt: skip

    @overload
    def inbox(
        self, topic: str, queue: str, *, as_: None = None, start: Literal["earliest", "latest"] | None = None,
        commit: Commit = "auto", commit_interval: Duration = COMMIT_INTERVAL_S, credit: int | None = None,
    ) -> Stream[Any]: ...  # fmt: skip

    def inbox(
        self,
        topic: str,
        queue: str,
        *,
        as_: type[T] | None = None,
        start: Literal["earliest", "latest"] | None = None,
        commit: Commit = "auto",
        commit_interval: Duration = COMMIT_INTERVAL_S,
        credit: int | None = None,
    ) -> Stream[Any]:
        """Read a light queue from where this group is, and commit as `stream` does. The group is one device: it has no
        members, and the server keeps nothing for it but where it is."""
        client = self._client
        return client._subscribed(  # type: ignore[no-any-return]
            Stream[Any](
                client._connection, client._clock, client._sub(), What((topic,), queue=queue), decoder(as_),
                group=self.name, start=start, member=None, room=None, commit=commit,
                commit_interval_s=seconds(commit_interval, "commit_interval"), credit=credit,
                on_assigned=None, on_revoked=None, on_over=client._subscriptions.discard,
            )
        )  # fmt: skip

    @overload
    def queue(
        self, topics: str | Sequence[str] = (), *, as_: type[T], pattern: str | None = None, lease: Duration = "30s",
        lease_max: Duration = "12h", prefetch: int | None = None, start: Start | None = None,
        tags: Iterable[str] | None = None, on_lost: Callable[[Any], object] | None = None, queue: str | None = None,
    ) -> Queue[T]: ...  # fmt: skip

    @overload
    def queue(
        self, topics: str | Sequence[str] = (), *, as_: None = None, pattern: str | None = None,
        lease: Duration = "30s", lease_max: Duration = "12h", prefetch: int | None = None,
        start: Start | None = None, tags: Iterable[str] | None = None, on_lost: Callable[[Any], object] | None = None,
        queue: str | None = None,
    ) -> Queue[Any]: ...  # fmt: skip

    def queue(
        self,
        topics: str | Sequence[str] = (),
        *,
        as_: type[T] | None = None,
        pattern: str | None = None,
        lease: Duration = "30s",
        lease_max: Duration = "12h",
        prefetch: int | None = None,
        start: Start | None = None,
        tags: Iterable[str] | None = None,
        on_lost: Callable[[Any], object] | None = None,
        queue: str | None = None,
    ) -> Queue[Any]:
        """Take messages one by one, each on lease: `async with group.queue("mails") as messages`, then `await
        message.ack()`, `nack(delay)` or `reject(reason)`.

        Leases are extended by themselves as long as messages are held here, but no longer than `lease_max`. `prefetch`:
        how many wait here. `on_lost` gets each message whose lease ended all the same: stop working on it. `queue`: of
        the topics, only this light queue, such as an inbox.
        """
        client = self._client
        lease_s = seconds(lease, "lease")
        if lease_s < 1:
            raise MqError(f"lease: must be at least 1s, and is {lease!r}")
        return client._subscribed(  # type: ignore[no-any-return]
            Queue[Any](
                client._connection, client._clock, client._sub(), _what(topics, pattern, tags)._replace(queue=queue),
                decoder(as_), group=self.name, lease_s=lease_s, lease_max_s=seconds(lease_max, "lease_max"),
                prefetch=prefetch, start=start, on_lost=on_lost, on_over=client._subscriptions.discard,
            )
        )  # fmt: skip

    async def lag(self) -> int:
        """Records that the group has not done yet."""
        answer = await self._client.http.call("GET", f"/mq/v1/groups/{segment(self.name)}/lag")
        return int(answer["total_lag"])

    async def configure(self, **settings: object) -> dict[str, Any]:
        """Change settings of the group (docs/groups.md): `max_attempts`, `backoff_ms`, …"""
        answer: dict[str, Any] = await self._client.http.call(
            "PATCH", f"/mq/v1/groups/{segment(self.name)}", None, settings
        )
        return answer

    async def delete(self) -> None:
        """Forget the group, its offsets and leases."""
        await self._client.http.call("DELETE", f"/mq/v1/groups/{segment(self.name)}")


def connect(
    url: str,
    *,
    token: TokenSource | None = None,
    name: str | None = None,
    idempotent: bool = True,
    pending_max: int = PENDING_MAX,
    retry: Duration = RETRY_S,
    middleware: Sequence[SendMiddleware] = (),
    on_state: OnState | None = None,
    ssl: Any = True,
) -> Client:
    """A client of the server at this URL: `async with mq.connect("http://127.0.0.1:8082") as client`.

    It waits for a server that is not up yet, and comes back by itself after every lost connection; only a refusal for
    good (a bad token) raises `Closed`. `token`: a token, or a function that gets one. `name`: for the server's log.
    `idempotent`: sends whose answer was lost with the connection are repeated, and stored once; without it they raise
    ConnectionLost. `pending_max`: records that may wait to be stored. `retry`: how long what the server cannot do for
    now is tried again: longer than a node of a cluster takes to restart. `on_state` is told of every change of the
    connection. `ssl`: as aiohttp takes it.
    """
    return Client(
        lambda: AiohttpTransport(url, ssl), token=token, name=name, idempotent=idempotent, pending_max=pending_max,
        retry=retry, middleware=middleware, on_state=on_state,
    )  # fmt: skip


def _what(topics: str | Sequence[str], pattern: str | None, tags: Iterable[str] | None) -> What:
    names = (topics,) if isinstance(topics, str) else tuple(topics)
    if bool(names) == (pattern is not None):
        raise MqError("say what to consume: either topics or pattern")
    if isinstance(tags, str):
        raise MqError(f"tags: must be a list of tags, such as [{tags!r}]")
    return What(names, pattern, None if tags is None else tuple(tags))


def _first(receipts: list[Receipt]) -> Receipt:
    return receipts[0]


def _all(receipts: list[Receipt]) -> list[Receipt]:
    return receipts
