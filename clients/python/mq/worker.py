"""Workers: a function that is called with each message of a queue. Returning acks the message, raising gives it back to
be tried again after a while, with the error's text; after the last retry, or with `Reject`, it goes to the dead
letters.

    @mq.worker("mails", group="mailers", concurrency=8, retries=5, backoff="1s 10s 1m")
    async def send_mail(message: mq.Message[Mail]) -> None: ...

    await send_mail.run(client)          # in a program of one's own, or: mq-worker app:send_mail --processes 4

Messages are handled at least once: a handler may be called again after a crash, or when a lease was lost. Leases are
extended while a handler runs; if one is lost all the same the handler is cancelled, since another worker has the
message. A `def` function runs in a thread, which cannot be cancelled: it may look at `message.is_lost`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from mq.client import Client
from mq.errors import MqError, Reject, Retry, Undecodable
from mq.message import Message, Receipt
from mq.middleware import HandlerMiddleware, wrapped
from mq.queue import Queue
from mq.read import Start
from mq.send import Sending
from mq.values import Duration, seconds

log = logging.getLogger("mq.worker")

T = TypeVar("T")

RETRIES = 15
"""With the first attempt 16, which is what the server allows by default (`max_attempts` of a group)."""
BACKOFF = "1s 5s 15s 1m 5m 15m 1h"
LEASE = "30s"
LEASE_MAX = "12h"

Handler: TypeAlias = Callable[[Message[T]], object]
"""Async or not; what it returns is ignored."""


class Worker(Generic[T]):
    """What `mq.worker` makes of a function. Calling it calls the function."""

    def __init__(
        self,
        handler: Handler[T],
        topic: str,
        *,
        group: str,
        concurrency: int,
        retries: int,
        backoff: str | Sequence[Duration],
        lease: Duration,
        lease_max: Duration,
        timeout: Duration | None,
        middleware: Sequence[HandlerMiddleware],
        start: Start | None,
        as_: Any,
    ) -> None:
        if concurrency < 1:
            raise MqError(f"concurrency: must be at least 1, and is {concurrency}")
        if retries < 0:
            raise MqError(f"retries: must be 0 or more, and is {retries}")
        self.handler = handler
        self.topic = topic
        self.group = group
        self.concurrency = concurrency
        self.retries = retries
        self.name = getattr(handler, "__name__", type(handler).__name__)
        self.__doc__ = handler.__doc__
        delays = backoff.split() if isinstance(backoff, str) else backoff
        self._backoff_s = [seconds(delay, "backoff") for delay in delays] or [0.0]
        self._lease = lease
        self._lease_max = lease_max
        self._timeout_s = None if timeout is None else seconds(timeout, "timeout")
        self._middleware = middleware
        self._start = start
        self._type = as_ if as_ is not None else _message_type(handler)
        self._client: Client | None = None
        self._runs: set[_Run[T]] = set()
        seconds(lease, "lease"), seconds(lease_max, "lease_max")

    def __call__(self, message: Message[T]) -> Any:
        """The function itself."""
        return self.handler(message)

    def bind(self, client: Client) -> None:
        """Say which client `send` uses. `run` does so too."""
        self._client = client

    def send(self, value: T, **options: Any) -> Sending[Receipt]:
        """Send a message to this worker's topic, with the options of `Client.send`."""
        if self._client is None:
            raise MqError(f"{self.name}.send: say which client to use, with {self.name}.bind(client)")
        return self._client.send(self.topic, value, **options)

    async def run(self, client: Client) -> None:
        """Work until `stop` is called; cancelling this gives back what is being worked on. Raises Refused and Closed
        when the server does not let it."""
        if self._client is None:
            self._client = client
        run = _Run(self, client)
        self._runs.add(run)
        try:
            await run()
        finally:
            self._runs.discard(run)

    def stop(self) -> None:
        """Take no more messages; `run` returns when those that are being worked on are done and settled."""
        for run in self._runs:
            run.stop()

    def delay_s(self, attempt: int) -> float:
        """How long a message waits after this attempt failed; the last delay of `backoff` is repeated."""
        return self._backoff_s[min(attempt, len(self._backoff_s)) - 1]


class _Run(Generic[T]):
    """One call of `Worker.run`: as many slots as messages are worked on at a time, all of which take from one queue."""

    def __init__(self, worker: Worker[T], client: Client) -> None:
        self._worker = worker
        self._timeout_s = worker._timeout_s
        concurrency = worker.concurrency
        self._queue: Queue[T] = client.group(worker.group).queue(
            worker.topic,
            as_=worker._type,
            lease=worker._lease,
            lease_max=worker._lease_max,
            prefetch=concurrency + max(2, concurrency // 2),  # enough to go on while acks are on their way
            start=worker._start,
            on_lost=self._lost,
        )
        self._threads: ThreadPoolExecutor | None = None
        self._handle = wrapped(worker._middleware, self._call())
        self._working: dict[int, asyncio.Task[None]] = {}

    def _call(self) -> Callable[[Message[Any]], Awaitable[object]]:
        handler: Any = self._worker.handler
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return handler  # type: ignore[no-any-return]
        threads = self._threads = ThreadPoolExecutor(self._worker.concurrency, f"mq-{self._worker.name}")

        async def in_thread(message: Message[Any]) -> object:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(threads, context.run, handler, message)

        return in_thread

    async def __call__(self) -> None:
        queue = self._queue
        try:
            async with queue:
                slots = [asyncio.create_task(self._slot()) for _ in range(self._worker.concurrency)]
                try:
                    await asyncio.gather(*slots)
                finally:
                    for slot in slots:
                        slot.cancel()
                    await asyncio.wait(slots)
        finally:
            if self._threads is not None:
                self._threads.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        self._queue.stop()

    async def _slot(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        working = self._working
        get, work = self._queue.get, self._work
        while (message := await get()) is not None:
            working[id(message)] = task
            try:
                await work(message, task)
            finally:
                del working[id(message)]

    async def _work(self, message: Message[T], task: asyncio.Task[None]) -> None:
        worker = self._worker
        try:
            message.value  # noqa: B018 - decoded here, so that what cannot be decoded is told from what fails
        except Undecodable as error:
            log.warning("%s: rejected %s: %s", worker.name, message.id, error)
            message.reject(f"Undecodable: {error}")
            return
        limit: asyncio.Timeout | None = None
        try:
            if self._timeout_s is None:
                await self._handle(message)
            else:
                async with asyncio.timeout(self._timeout_s) as limit:
                    await self._handle(message)
        except asyncio.CancelledError:
            if not message.is_lost:
                message.nack(0, "the worker was stopped")
                raise
            task.uncancel()
            log.warning("%s: gave up %s: its lease is over", worker.name, message.id)
        except Reject as reject:
            message.reject(reject.reason)
        except Retry as retry:
            self._again(message, retry)
        except Exception as error:
            is_late = limit is not None and limit.expired()
            self._failed(message, TimeoutError(f"not done after {self._timeout_s:g} s") if is_late else error)
        else:
            # Not awaited: if it fails the message comes again, and credit bounds those on their way.
            if not message.is_settled:
                message.ack()

    def _again(self, message: Message[T], retry: Retry) -> None:
        try:
            delay_s = self._worker.delay_s(message.attempt) if retry.delay is None else seconds(retry.delay, "delay")
        except MqError as error:
            self._failed(message, error)
        else:
            message.nack(delay_s, retry.reason)

    def _failed(self, message: Message[T], error: Exception) -> None:
        worker = self._worker
        reason = f"{type(error).__name__}: {error}"
        if message.is_lost:
            log.warning("%s: gave up %s: its lease is over", worker.name, message.id)
        elif message.attempt > worker.retries:
            log.error("%s: rejected %s after attempt %d", worker.name, message.id, message.attempt, exc_info=error)
            message.reject(reason)
        else:
            delay_s = worker.delay_s(message.attempt)
            log.warning(
                "%s: attempt %d of %s failed; again in %g s",
                worker.name, message.attempt, message.id, delay_s, exc_info=error,
            )  # fmt: skip
            message.nack(delay_s, reason)

    def _lost(self, message: Message[Any]) -> None:
        task = self._working.get(id(message))
        if task is not None and self._threads is None:
            task.cancel()


def worker(
    topic: str,
    *,
    group: str,
    concurrency: int = 1,
    retries: int = RETRIES,
    backoff: str | Sequence[Duration] = BACKOFF,
    lease: Duration = LEASE,
    lease_max: Duration = LEASE_MAX,
    timeout: Duration | None = None,
    middleware: Sequence[HandlerMiddleware] = (),
    start: Start | None = None,
    as_: Any = None,
) -> Callable[[Handler[T]], Worker[T]]:
    """Make a function the worker of a topic, as a member of a group. See mq/worker.py.

    `concurrency`: calls at a time. `retries`: attempts after the first; `backoff`: the wait after each, the last one
    repeated (the group's `max_attempts`, 16, bounds them too). `lease`: how soon others get the messages of a worker
    that died; `lease_max`: how long a call may take before others get its message. `timeout`: after this a call is
    cancelled, and tried again (the thread of a `def` function goes on). Values are read as the `T` of the parameter's
    annotation `Message[T]`, or as `as_`.
    """

    def made(handler: Handler[T]) -> Worker[T]:
        return Worker(
            handler, topic, group=group, concurrency=concurrency, retries=retries, backoff=backoff, lease=lease,
            lease_max=lease_max, timeout=timeout, middleware=middleware, start=start, as_=as_,
        )  # fmt: skip

    return made


def _message_type(handler: Callable[..., object]) -> Any:
    """The T of `Message[T]`, with which the handler's first parameter is annotated; None without one."""
    function: Any = handler if inspect.isroutine(handler) else type(handler).__call__
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if not names:
        raise MqError(f"{handler!r} takes no message: a worker's function is called with one")
    if names[0] not in getattr(function, "__annotations__", {}):
        return None
    try:
        annotation = get_type_hints(function)[names[0]]
    except NameError as error:
        raise MqError(f"the annotation of {handler!r} cannot be resolved ({error}); say as_=... in mq.worker") from None
    if get_origin(annotation) is Message:
        (type_,) = get_args(annotation)
        return None if isinstance(type_, TypeVar) else type_
    return None
