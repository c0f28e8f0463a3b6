"""One connection to a server for all of a process, in a thread that outlives kombu's connections and channels: what a
task holds stays leased while it runs, whatever becomes of the channel that it came through.

    Link        sends, and asks; one for each server and token. Its methods may be called from any thread, and wait
    Intake      what one channel takes from durable queues: one subscription over all of them
    Ephemeral   a queue that lives with this process: readers, from the moment it was declared
    Inbox       what has come for one connection of kombu, and who waits for it

Intakes and ephemeral queues live in the loop's thread. After a fork the child makes links of its own; what it inherited
it neither uses nor closes, since sockets and the selector are shared with the parent.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import kombu.utils.json
from kombu.transport import virtual

import mq.client
from mq.client import Client
from mq.connection import TokenSource
from mq.errors import ConnectionLost, MqError, Refused
from mq.http import segment
from mq.kombu.messages import EXCHANGE_PREFIX, delay_s, eta_of, is_early, rename_eta, topic_of_queue
from mq.loop_thread import LoopThread
from mq.message import Message
from mq.queue import Queue
from mq.read import Reader
from mq.send import Acks
from mq.subscription import quietly
from mq.transport import AiohttpTransport

log = logging.getLogger("mq.kombu")

R = TypeVar("R")

CONNECT_S = 10.0
ASK_S = 30.0
"""How long a question waits for a server that is away."""
RETRY_S = 0.5
CLOSE_S = 15.0
INBOX_MAX = 1_000
"""Messages that wait for a slow consumer of queues without a prefetch count. Beyond that the server waits."""
ABSENT_MAX = 1_000
EPHEMERAL = {"partitions": 1, "retention_ms": 3_600_000}
"""The topic of an exchange: what its readers have had is kept for an hour."""
NOT_ALLOWED = 40301
NO_SUCH_TOPIC = 40401
NO_SUCH_GROUP = 40405
TOPIC_IS_OTHER = 40955
KEY_IS_TAKEN = 40954
NOT_PENDING = frozenset({40450, 40950})


class Arrival(NamedTuple):
    """A message for a consumer. `intake` and `message` are of a durable queue: how it is settled."""

    queue: str
    payload: dict[str, Any]
    intake: Intake | None = None
    message: Message[Any] | None = None

    @property
    def is_lost(self) -> bool:
        """Whether the lease is over."""
        return self.message is not None and self.message.is_lost

    def settle(self, op: str, **fields: object) -> None:
        """Ack, nack or reject, from any thread and without waiting. If it fails the message comes again."""
        if self.intake is not None and self.message is not None:
            self.intake.link.loop.soon(self.intake.settle, op, self.message, fields)


class Inbox:
    """Filled by the loop's thread, emptied by the one that kombu runs in."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._items: deque[Arrival | Exception] = deque()
        self._filled = threading.Condition()
        self._room: asyncio.Event | None = None
        self._bell: int | None = None

    def put(self, item: Arrival | Exception) -> None:
        """Something has come. An exception is raised by the `take` that meets it."""
        with self._filled:
            self._items.append(item)
            self._filled.notify()
            if self._bell is not None:
                os.eventfd_write(self._bell, 1)

    @property
    def is_full(self) -> bool:
        """Whether queues that nothing else bounds are to wait."""
        return len(self._items) >= INBOX_MAX

    async def change(self) -> None:
        """While it is full, wait until it is half empty, or something was removed."""
        room = self._room
        if room is None:
            room = self._room = asyncio.Event()
        if self.is_full:
            await room.wait()

    def take(self, timeout_s: float | None = 0.0) -> Arrival | None:
        """The next one; None when nothing comes in time. None as the timeout: wait for ever."""
        with self._filled:
            if not self._items and timeout_s != 0:
                self._filled.wait_for(lambda: self._items, timeout_s)
            if not self._items:
                return None
            item = self._items.popleft()
        if len(self._items) <= INBOX_MAX // 2:
            self._wake()
        if isinstance(item, Exception):
            raise item
        return item

    def remove(self, is_meant: Callable[[Arrival], bool]) -> list[Arrival]:
        """Take out what is not to be delivered here."""
        with self._filled:
            removed = [item for item in self._items if isinstance(item, Arrival) and is_meant(item)]
            for item in removed:
                self._items.remove(item)
        self._wake()
        return removed

    def _wake(self) -> None:
        room = self._room
        if room is not None:
            self._room = None
            self._loop.soon(room.set)

    def bell(self) -> int:
        """A file descriptor that is readable while something is here that `quiet` was not called for."""
        if self._bell is None:
            self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if self._items:
                os.eventfd_write(self._bell, 1)
        return self._bell

    def ring(self) -> None:
        """Make the bell readable: something was left here."""
        if self._bell is not None:
            os.eventfd_write(self._bell, 1)

    def quiet(self) -> None:
        """The bell was heard."""
        if self._bell is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(self._bell)

    def close(self) -> None:
        """No reader is left."""
        with self._filled:
            bell, self._bell = self._bell, None
        if bell is not None:
            os.close(bell)


class Intake:
    """What a channel takes from durable queues, on lease. When the queues change, or fewer messages are wanted, a new
    subscription takes over; the old one ends when what it has delivered is settled."""

    def __init__(self, link: Link, channel: Any, inbox: Inbox, *, group: str, lease: Any, lease_max: Any) -> None:
        self.link = link
        self.channel = channel
        self._inbox = inbox
        self._group = group
        self._lease = lease
        self._lease_max = lease_max
        self._names: dict[str, str] = {}
        self._prefetch = 0
        self._current: Queue[Any] | None = None
        self._retired: set[Queue[Any]] = set()

    def want(self, queues: Iterable[str], prefetch: int) -> None:
        """Take from these queues; at most so many messages that are not settled."""
        names = {topic_of_queue(queue): queue for queue in queues}
        current = self._current
        if current is not None and names == self._names and prefetch >= self._prefetch:
            if prefetch > self._prefetch:
                current.widen(prefetch - self._prefetch)
                self._prefetch = prefetch
            return
        self.retire()
        self._names, self._prefetch = names, prefetch
        try:
            self._subscribe()
        except MqError as error:  # a setting that is none
            self._inbox.put(error)

    def _subscribe(self) -> None:
        names, prefetch = self._names, self._prefetch
        if names:
            self._current = self.link.client.group(self._group).queue(
                list(names), as_=bytes, lease=self._lease, lease_max=self._lease_max, prefetch=prefetch,
                on_lost=self._lost,
            )  # fmt: skip
            self.link.spawn(self._pump(self._current))

    async def ready(self) -> None:
        """Return once the server delivers what is wanted, or has refused to: then the inbox is told why."""
        if self._current is not None:
            with suppress(MqError):
                await self._current.ready()

    def retire(self) -> None:
        """Take nothing more, and give back what was not delivered. What was delivered stays leased until it is
        settled."""
        queue, self._current = self._current, None
        if queue is None:
            return
        queue.give_back()
        for arrival in self._inbox.remove(lambda arrival: arrival.intake is self):
            arrival.settle("nack", delay_ms=0)
        self._retired.add(queue)
        self._end_those_done()

    async def close(self) -> None:
        """Give back everything."""
        self.retire()
        for queue in list(self._retired):
            self._retired.discard(queue)
            await queue.aclose()

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> None:
        """Ack, nack or reject."""
        message._source.settle(op, message, fields)
        self._end_those_done()

    def _end_those_done(self) -> None:
        for queue in [queue for queue in self._retired if not queue.held_count]:
            self._retired.discard(queue)
            self.link.spawn(quietly(queue.aclose()))

    def _lost(self, message: Message[Any]) -> None:
        log.warning("the lease of %s is over: it is delivered again, and may run twice", message.id)
        self.link.loop.soon(self._end_those_done)  # after it was taken off the account

    async def _pump(self, queue: Queue[Any]) -> None:
        try:
            while (message := await queue.get()) is not None:
                payload = read(message)
                if payload is None:
                    message.reject("not a message of kombu")
                elif is_early(payload["headers"], message.deliver_at_ms):
                    self.link.spawn(self._send_rest(message, payload["headers"]))
                else:
                    rename_eta(payload)
                    payload["properties"]["delivery_tag"] = f"{message.id}#{message.attempt}"
                    payload["properties"]["delivery_info"]["redelivered"] = message.attempt > 1
                    self._inbox.put(Arrival(self._names[message.topic], payload, self, message))
        except MqError as error:
            self.link.forget(self._names)
            if queue is self._current:
                self._inbox.put(ConnectionLost(f"the subscription of {', '.join(self._names.values())} ended: {error}"))

    async def _send_rest(self, message: Message[Any], headers: Mapping[str, Any]) -> None:
        """A delay that was longer than the server takes goes on. Sent first, acked then: a crash in between sends it
        again under the same id. Raises MqError: it is given back."""
        try:
            await self.link.store(
                message.topic, message.value_bytes, headers, msg_id=f"{message.id}-{message.deliver_at_ms}"
            )
        except MqError:
            self.settle("nack", message, {})
            raise
        self.settle("ack", message, {})


class Ephemeral:
    """A queue that lives with this process."""

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self.link = link
        self._readers: dict[tuple[str, str], Reader[Any]] = {}
        self.inbox = Inbox(link.loop)
        """Where messages go: here, or to the connection that consumes."""

    async def read(self, topic: str, tag: str | None, is_wanted: Callable[[str], bool]) -> None:
        """From now on, also take what comes under this tag (None: whatever comes)."""
        if (topic, tag or "") in self._readers:
            return
        reader = self.link.client.read(topic, as_=bytes, tags=None if tag is None else [tag], credit=INBOX_MAX)
        self._readers[topic, tag or ""] = reader
        try:
            await reader.ready()
        except BaseException:
            del self._readers[topic, tag or ""]
            raise
        self.link.spawn(self._pump(reader, is_wanted))

    async def _pump(self, reader: Reader[Any], is_wanted: Callable[[str], bool]) -> None:
        try:
            async for message in reader:
                payload = read(message)
                if payload is None:
                    continue
                key = payload["properties"]["delivery_info"].get("routing_key") or ""
                if isinstance(key, str) and is_wanted(key):
                    payload["properties"]["delivery_tag"] = f"{message.id}#{self.name}"
                    await self.put(Arrival(self.name, payload))
        except MqError as error:
            self.inbox.put(ConnectionLost(f"queue {self.name}: {error}"))

    async def put(self, arrival: Arrival) -> None:
        """Deliver it once there is room, wherever messages go by then."""
        while self.inbox.is_full:
            await self.inbox.change()
        self.inbox.put(arrival)

    def deliver_to(self, inbox: Inbox) -> None:
        """Messages go there now; those that wait go along."""
        waiting, self.inbox = self.inbox, inbox
        if waiting is not inbox:
            for arrival in waiting.remove(lambda arrival: arrival.queue == self.name):
                inbox.put(arrival)

    async def close(self) -> None:
        """It is deleted, and what is in it."""
        self.inbox.remove(lambda arrival: arrival.queue == self.name)
        readers, self._readers = self._readers, {}
        await asyncio.gather(*(reader.aclose() for reader in readers.values()))


class Link:
    """A server, as this process talks to it."""

    def __init__(self, loop: LoopThread, url: str, token: TokenSource | None, ssl: Any) -> None:
        self.pid = os.getpid()
        self.loop = loop
        self.client: Client
        self._url = url
        self._token = token
        self._ssl = ssl
        self._delay_max_ms = 0
        self._topics: set[str] = set()
        self._absent: dict[str, float] = {}
        self._groups: set[str] = set()
        self._ephemerals: dict[str, tuple[Ephemeral, set[int]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def is_usable(self) -> bool:
        """Whether it can come back by itself."""
        return self.client.state != "closed" and self.loop.is_alive

    def call(self, make: Callable[[], Awaitable[R]], timeout_s: float = ASK_S) -> R:
        """Await what `make` makes; raises ConnectionLost when it takes longer than this."""
        try:
            return self.loop.call(make, timeout_s)
        except TimeoutError:
            raise ConnectionLost(f"{self._url} did not answer within {timeout_s:g} s") from None

    def ask(self, make: Callable[[], Awaitable[R]], timeout_s: float = ASK_S) -> R:
        """The same for what may be repeated and does not wait for the server by itself: requests over HTTP."""

        async def asked() -> R:
            while True:
                try:
                    return await make()
                except ConnectionLost as error:
                    log.debug("%s; asking again", error)
                    await asyncio.sleep(RETRY_S)

        return self.call(asked, timeout_s)

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside; for what is in the loop's thread. Its failure leads to a redelivery."""
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("given up: %s", error)

    # ------------------------------------------------------------------------------------------------- its life

    def open(self, patience_s: float) -> None:
        """Connect. Raises ConnectionLost when the server is not ready, Closed when it refuses for good."""

        async def opened() -> None:
            self.client = await mq.client.connect(self._url, token=self._token, ssl=self._ssl, name="kombu")
            limits = await self.client.http.call("GET", "/mq/v1/limits")
            self._delay_max_ms = int(limits["delay_ms_max"])

        self.probe(patience_s)
        self.call(opened, CONNECT_S)

    def probe(self, patience_s: float) -> None:
        """Raises ConnectionLost unless the server is ready, or comes to be so within `patience_s`."""

        async def probed() -> None:
            transport = AiohttpTransport(self._url, self._ssl)
            try:
                status, *_ = await transport.request("GET", "/readyz", {}, None, None)
            finally:
                await transport.close()
            if status != 200:
                raise ConnectionLost(f"{self._url} is not ready: it answered {status}")

        if patience_s:
            self.ask(probed, patience_s)
        else:
            self.call(probed, CONNECT_S)

    def close(self) -> None:
        """Give back what is held, and end."""
        with suppress(MqError, OSError):
            self.call(self.client.close, CLOSE_S)

    # ------------------------------------------------------------------------------------------------- queues

    def create(self, topic: str, **settings: Any) -> None:
        """Make sure that the topic exists, whatever its settings are."""
        if topic not in self._topics:
            self.ask(lambda: self._create(topic, **settings))

    async def _create(self, topic: str, **settings: Any) -> None:
        try:
            await self.client.topics.create(topic, **settings)
        except Refused as error:
            if error.code != TOPIC_IS_OTHER:
                raise
        self._topics.add(topic)

    def forget(self, topics: Iterable[str]) -> None:
        """They may have been deleted."""
        self._topics.difference_update(topics)

    def has(self, topic: str, *, absent_s: float = 0.0, hidden_is_absent: bool = False) -> bool:
        """Whether the topic exists. An answer that it does not is believed for so many seconds. `hidden_is_absent`:
        so is a refusal to tell, which is raised otherwise."""
        if topic in self._topics:
            return True
        now_s = time.monotonic()
        if now_s < self._absent.get(topic, -absent_s) + absent_s:
            return False
        try:
            self.ask(lambda: self.client.topics.get(topic))
        except Refused as error:
            if error.code != NO_SUCH_TOPIC and not (hidden_is_absent and error.code == NOT_ALLOWED):
                raise
            if len(self._absent) >= ABSENT_MAX:
                self._absent.clear()
            self._absent[topic] = now_s
            return False
        self._topics.add(topic)
        return True

    def delete(self, topic: str) -> None:
        """Delete the topic, if it exists."""
        self._topics.discard(topic)
        try:
            self.ask(lambda: self.client.topics.delete(topic))
        except Refused as error:
            if error.code != NO_SUCH_TOPIC:
                raise

    def size(self, topic: str, group: str) -> int:
        """Messages of the topic that the group has not done."""

        async def counted() -> int:
            try:
                lag = await self.client.http.call("GET", f"/mq/v1/groups/{segment(group)}/lag")
            except Refused as error:
                if error.code != NO_SUCH_GROUP:
                    raise
                lag = {"partitions": []}
            of_topic = [one["lag"] for one in lag["partitions"] if one["topic"] == topic]
            if of_topic:
                return sum(of_topic)
            shown = await self.client.topics.get(topic)  # the group has never been here
            return sum(one["end_offset"] - one["beginning_offset"] for one in shown["offsets"])

        return self.ask(counted)

    def purge(self, topic: str, group: str) -> int:
        """Skip what the group has not done; how many that were. Also what is being worked on is not done again."""
        count = self.size(topic, group)
        body = {"topic": topic, "to": "latest", "force": True}
        if count:
            self.ask(lambda: self.client.http.call("POST", f"/mq/v1/groups/{segment(group)}/offsets:reset", None, body))
        return count

    def prepare_group(self, group: str, max_attempts: int) -> None:
        """Before a group is consumed with: Celery counts retries itself."""
        if group not in self._groups:
            self.ask(lambda: self.client.group(group).configure(max_attempts=max_attempts))
            self._groups.add(group)

    def cancel(self, topic: str, key: str) -> bool:
        """Cancel a delayed message; False when none is pending under this key."""
        try:
            self.ask(lambda: self.client.schedules.cancel(topic, key))
        except Refused as error:
            if error.code in NOT_PENDING:
                return False
            raise
        return True

    # ------------------------------------------------------------------------------------------------- messages

    def send(self, topic: str, payload: Mapping[str, Any], timeout_s: float) -> None:
        """Store a message of a durable queue: on disk on return. One whose task has an `eta` waits in the server.

        Raises ConnectionLost after `timeout_s`: the message may be stored all the same, later."""
        body = kombu.utils.json.dumps(payload).encode()
        tag = payload["properties"]["delivery_tag"]
        self.call(lambda: self.store(topic, body, payload["headers"], msg_id=tag), timeout_s)

    def publish(self, topic: str, payload: Mapping[str, Any], tag: str | None, timeout_s: float) -> None:
        """Store a message for the queues that live with processes."""
        body = kombu.utils.json.dumps(payload).encode()
        acks: Acks = "written"  # no reader outlives its process; a power failure takes them all

        self.call(lambda: self._stored(topic, body, tag=tag, acks=acks), timeout_s)

    async def _stored(self, topic: str, body: bytes | None, **options: Any) -> None:
        """Store it, in a topic that is made again when it was deleted."""
        try:
            await self.client.send(topic, body, **options)
        except Refused as error:
            if error.code != NO_SUCH_TOPIC:
                raise
            await self._create(topic, **(EPHEMERAL if topic.startswith(EXCHANGE_PREFIX) else {}))
            await self.client.send(topic, body, **options)

    async def store(self, topic: str, body: bytes | None, headers: Mapping[str, Any], *, msg_id: str) -> None:
        """In the loop's thread: store it, due at its eta, or as late as the server takes."""
        eta = eta_of(headers)
        wait_s = 0.0 if eta is None else delay_s(eta, datetime.now(UTC), self._delay_max_ms)
        if eta is None or not wait_s:
            await self._stored(topic, body, msg_id=msg_id)
            return
        when: dict[str, Any] = {"delay": wait_s} if wait_s * 1000 >= self._delay_max_ms else {"at": eta}
        task_id = headers.get("id")
        try:
            await self._stored(
                topic, body, msg_id=msg_id, schedule_key=task_id if isinstance(task_id, str) else None, **when
            )
        except Refused as error:
            if error.code != KEY_IS_TAKEN:
                raise
            # The same task was sent with a delay before, and waits: `revoke` finds only that one.
            await self._stored(topic, body, msg_id=msg_id, **when)

    # ------------------------------------------------------------------------------------------------- ephemeral queues

    def ephemeral(self, name: str) -> Ephemeral | None:
        """A queue that lives with this process, if one of this name was declared."""
        found = self._ephemerals.get(name)
        return None if found is None else found[0]

    def declare_ephemeral(self, name: str, owner: int) -> None:
        """It lives as long as one of those who declared it."""
        if name not in self._ephemerals:
            self._ephemerals[name] = Ephemeral(self, name), set()
        self._ephemerals[name][1].add(owner)

    def bind_ephemeral(self, name: str, topic: str, tag: str | None, is_wanted: Callable[[str], bool]) -> None:
        """From its return on, the queue gets what is published there."""
        self.create(topic, **EPHEMERAL)
        ephemeral = self.ephemeral(name)
        if ephemeral is not None:
            queue = ephemeral
            self.call(lambda: queue.read(topic, tag, is_wanted))

    def release_ephemerals(self, owner: int, name: str | None = None) -> list[str]:
        """An owner has gone, or (with a name) has deleted the queue. Returns the names of what it owned."""
        released = [
            queue for queue, (_, owners) in self._ephemerals.items() if owner in owners and name in (None, queue)
        ]
        for queue in released:
            ephemeral, owners = self._ephemerals[queue]
            owners.discard(owner)
            if not owners or name is not None:
                del self._ephemerals[queue]
                with suppress(MqError):
                    self.call(ephemeral.close, CLOSE_S)
        return released


def read(message: Message[Any]) -> dict[str, Any] | None:
    """What kombu sent; None if it did not. What is read here does not fail in kombu, which would end a worker."""
    try:
        payload: dict[str, Any] = kombu.utils.json.loads(message.value_bytes or b"")
        headers, properties = payload["headers"], payload["properties"]
        info = properties.setdefault("delivery_info", {})
        body, encoding = payload.get("body"), properties.get("body_encoding")
        if body and encoding and encoding.lower() != "utf-8":
            virtual.Channel.codecs[encoding].decode(body)
    except Exception:  # kombu makes objects of what has a type
        return None
    return payload if all(isinstance(field, dict) for field in (headers, properties, info)) else None


class _Process:
    """The links of this process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.loop: LoopThread | None = None
        self.links: dict[tuple[str, object], Link] = {}


_process = _Process()
_inherited: list[_Process] = []
"""Of the processes that we were forked from. Kept, since collecting them would close sockets."""


def _forked() -> None:
    global _process
    _inherited.append(_process)
    _process = _Process()


def close_links() -> None:
    """End all links of this process: what is held is given back at once. Runs at the end of the process."""
    links = list(_process.links.values())
    _process.links.clear()
    for link in links:
        link.close()


os.register_at_fork(after_in_child=_forked)
atexit.register(close_links)


def link_to(url: str, token: TokenSource | None, ssl: Any, patience_s: float) -> Link:
    """The link to a server. Raises ConnectionLost when the server is not ready, Closed when it refuses for good.

    A server that this process, or one that it was forked from, has been connected to is waited for: a restart of it is
    not to be seen. Another is told to be away at once."""
    process = _process
    key = (url, token)
    with process.lock:
        link = process.links.get(key)
        if link is not None and link.is_usable:
            link.probe(patience_s)
            return link
        if process.loop is None or not process.loop.is_alive:
            process.loop = LoopThread()
        link = Link(process.loop, url, token, ssl)
        link.open(patience_s if any(key in each.links for each in (process, *_inherited)) else 0.0)
        process.links[key] = link
        return link
