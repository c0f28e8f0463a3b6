"""The client without async: `import mq.sync`, the same words, and calls that return when they are done.

    with mq.sync.connect("http://127.0.0.1:8082") as client:
        receipt = client.send("orders", {"sku": 9}, key="u1")
        for message in client.read("orders", start="earliest"): ...
        for message in client.group("mailers").queue("mails"):
            message.ack()

An event loop in a thread of its own does the work: leases are extended while the caller is busy. A client may be used
from several threads, each subscription from one. After a fork, open another: this is told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import mq.client
from mq.loop_thread import LoopThread
from mq.message import Message, Receipt
from mq.partitioned import PartitionedSubscription
from mq.queue import Queue
from mq.recurring import Recurring
from mq.schedules import Schedule
from mq.send import Acks
from mq.subscription import Subscription

S = TypeVar("S", bound=Subscription[Any])


class Client:
    """See `mq.Client`."""

    def __init__(self, inner: mq.client.Client) -> None:
        self._inner = inner
        self._loop = LoopThread()

    def __enter__(self) -> Self:
        try:
            self._loop.call(lambda: self._inner)
        except BaseException:
            self._loop.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As `mq.Client.close`."""
        if self._loop.is_alive:
            self._loop.call(self._inner.close)
        self._loop.stop()

    def send(self, topic: str, value: Any, **options: Any) -> Receipt:
        """As `mq.Client.send`; returns when the record is stored."""
        return self._loop.call(lambda: self._inner.send(topic, value, **options))

    def send_many(self, topic: str, records: Iterable[Any], *, acks: Acks | None = None) -> list[Receipt]:
        """As `mq.Client.send_many`."""
        given = list(records)
        return self._loop.call(lambda: self._inner.send_many(topic, given, acks=acks))

    def send_raw(
        self, topic: str, batches: bytes, *, partition: int | None = None, acks: Acks | None = None
    ) -> list[Receipt]:
        """As `mq.Client.send_raw`."""
        return self._loop.call(lambda: self._inner.send_raw(topic, batches, partition=partition, acks=acks))

    def read(self, topics: str | Sequence[str] = (), **options: Any) -> Messages[Any]:
        """As `mq.Client.read`."""
        return Messages(self._loop, lambda: self._inner.read(topics, **options))

    def inbox(self, topic: str, queue: str, **options: Any) -> Messages[Any]:
        """As `mq.Client.inbox`."""
        return Messages(self._loop, lambda: self._inner.inbox(topic, queue, **options))

    def group(self, name: str) -> Group:
        """As `mq.Client.group`."""
        return Group(self, name)

    @property
    def schedules(self) -> Schedules:
        """As `mq.Client.schedules`."""
        return Schedules(self)

    @property
    def recurring(self) -> RecurringSchedules:
        """As `mq.Client.recurring`."""
        return RecurringSchedules(self)

    @property
    def topics(self) -> Topics:
        """As `mq.Client.topics`."""
        return Topics(self)


class Group:
    """See `mq.Group`."""

    def __init__(self, client: Client, name: str) -> None:
        self._loop = client._loop
        self._inner = client._inner
        self.name = name

    def stream(self, topics: str | Sequence[str] = (), **options: Any) -> Messages[Any]:
        """As `mq.Group.stream`."""
        return Messages(self._loop, lambda: self._inner.group(self.name).stream(topics, **options))

    def inbox(self, topic: str, queue: str, **options: Any) -> Messages[Any]:
        """As `mq.Group.inbox`."""
        return Messages(self._loop, lambda: self._inner.group(self.name).inbox(topic, queue, **options))

    def queue(self, topics: str | Sequence[str] = (), **options: Any) -> Messages[Any]:
        """As `mq.Group.queue`; `ack` and its like return when that is durable."""
        return Messages(self._loop, lambda: self._inner.group(self.name).queue(topics, **options))

    def lag(self) -> int:
        """As `mq.Group.lag`."""
        return self._loop.call(lambda: self._inner.group(self.name).lag())

    def configure(self, **settings: object) -> dict[str, Any]:
        """As `mq.Group.configure`."""
        return self._loop.call(lambda: self._inner.group(self.name).configure(**settings))

    def delete(self) -> None:
        """As `mq.Group.delete`."""
        self._loop.call(lambda: self._inner.group(self.name).delete())


class Schedules:
    """See `mq.schedules.Schedules`."""

    def __init__(self, client: Client) -> None:
        self._loop = client._loop
        self._inner = client._inner

    def list(self, topic: str | None = None, **options: Any) -> Iterator[Schedule]:
        """As `list` of `mq.Client.schedules`."""

        async def collect() -> list[Schedule]:
            return [schedule async for schedule in self._inner.schedules.list(topic, **options)]

        return iter(self._loop.call(collect))

    def get(self, name: str, key: str | None = None) -> Schedule:
        """As `get` of `mq.Client.schedules`."""
        return self._loop.call(lambda: self._inner.schedules.get(name, key))

    def cancel(self, name: str, key: str | None = None) -> None:
        """As `cancel` of `mq.Client.schedules`."""
        self._loop.call(lambda: self._inner.schedules.cancel(name, key))

    def move(self, name: str, key: str | None = None, **to: Any) -> Receipt:
        """As `move` of `mq.Client.schedules`."""
        return self._loop.call(lambda: self._inner.schedules.move(name, key, **to))

    def fire(self, name: str, key: str | None = None) -> Receipt:
        """As `fire` of `mq.Client.schedules`."""
        return self._loop.call(lambda: self._inner.schedules.fire(name, key))


class RecurringSchedules:
    """See `mq.recurring.RecurringSchedules`."""

    def __init__(self, client: Client) -> None:
        self._loop = client._loop
        self._inner = client._inner

    def put(self, name: str, topic: str, value: Any, **options: Any) -> Recurring:
        """As `put` of `mq.Client.recurring`."""
        return self._loop.call(lambda: self._inner.recurring.put(name, topic, value, **options))

    def list(self, topic: str | None = None) -> Iterator[Recurring]:
        """As `list` of `mq.Client.recurring`."""

        async def collect() -> list[Recurring]:
            return [recurring async for recurring in self._inner.recurring.list(topic)]

        return iter(self._loop.call(collect))

    def get(self, name: str) -> Recurring:
        """As `get` of `mq.Client.recurring`."""
        return self._loop.call(lambda: self._inner.recurring.get(name))

    def pause(self, name: str) -> Recurring:
        """As `pause` of `mq.Client.recurring`."""
        return self._loop.call(lambda: self._inner.recurring.pause(name))

    def resume(self, name: str) -> Recurring:
        """As `resume` of `mq.Client.recurring`."""
        return self._loop.call(lambda: self._inner.recurring.resume(name))

    def delete(self, name: str) -> None:
        """As `delete` of `mq.Client.recurring`."""
        self._loop.call(lambda: self._inner.recurring.delete(name))


class Topics:
    """See `mq.topics.Topics`."""

    def __init__(self, client: Client) -> None:
        self._loop = client._loop
        self._inner = client._inner

    def create(self, topic: str, partitions: int | None = None, **settings: object) -> dict[str, Any]:
        """As `create` of `mq.Client.topics`."""
        return self._loop.call(lambda: self._inner.topics.create(topic, partitions, **settings))

    def list(self) -> Sequence[str]:
        """As `list` of `mq.Client.topics`."""
        return self._loop.call(lambda: self._inner.topics.list())

    def get(self, topic: str) -> dict[str, Any]:
        """As `get` of `mq.Client.topics`."""
        return self._loop.call(lambda: self._inner.topics.get(topic))

    def delete(self, topic: str) -> None:
        """As `delete` of `mq.Client.topics`."""
        self._loop.call(lambda: self._inner.topics.delete(topic))


class Messages(Generic[S]):
    """A subscription, to be iterated over; leaving the loop, or the `with` block, ends it."""

    def __init__(self, loop: LoopThread, make: Callable[[], S]) -> None:
        self._loop = loop

        async def made() -> S:
            return make()

        self._inner = loop.call(made)

    def __enter__(self) -> Self:
        self._loop.call(self._inner.ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Settle what is done, and end."""
        self._loop.call(self._inner.aclose)

    def __iter__(self) -> Iterator[Message[Any]]:
        try:
            for message in self._settled_here():
                message._source = _Blocking(self._loop, message._source)
                yield message
        finally:
            self.close()

    @property
    def cursor(self) -> str:
        """As `mq.Reader.cursor`."""

        async def read() -> str:
            return str(getattr(self._inner, "cursor"))  # noqa: B009 - only readers have one

        return self._loop.call(read)

    def commit(self) -> None:
        """As `mq.Stream.commit`."""
        self._loop.call(getattr(self._inner, "commit"))  # noqa: B009 - only streams have it

    def seek(self, to: object) -> None:
        """As `seek` of readers and streams."""
        self._loop.call(lambda: getattr(self._inner, "seek")(to))  # noqa: B009 - queues have it not

    def _settled_here(self) -> Iterator[Message[Any]]:
        inner = self._inner
        if isinstance(inner, Queue):
            while (message := self._loop.call(inner.get)) is not None:
                yield message
        elif isinstance(inner, PartitionedSubscription):
            # A frame at a time, so that a message costs no change of threads. Which one is in hand is told in passing.
            while (held := self._loop.call(inner._next)) is not None:
                for item in held.items:
                    inner._last = item
                    yield item
                    if held.is_dropped:
                        break


class _Blocking:
    """Settles over there, and waits for it."""

    def __init__(self, loop: LoopThread, source: Any) -> None:
        self._loop = loop
        self._source = source
        self.decode = source.decode

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> None:
        """Send ack, nack, reject or extend; returns when it is durable."""
        self._loop.call(lambda: self._source.settle(op, message, fields))


def connect(url: str, **options: Any) -> Client:
    """As `mq.connect`: `with mq.sync.connect("http://127.0.0.1:8082") as client`."""
    return Client(mq.client.connect(url, **options))
