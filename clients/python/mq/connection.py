"""The conversation on a real loop: dials, reads, writes, waits, and dials again. What is decided is in
mq/protocol.py."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from mq.clock import Clock, Timer
from mq.errors import Closed, ConnectionLost, MqError, Undecodable
from mq.frames import Frame
from mq.protocol import ConnectionState, Conversation
from mq.transport import CLOSE_S, Socket, Transport

log = logging.getLogger("mq")

HELLO_S = 10.0
LOST = 4000
"""What we close with when the session is to wait for us."""

TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or a function, async or not, that gets one; it is asked again before the token ends and for each
connection."""

OnState: TypeAlias = Callable[[ConnectionState, Exception | None], object]


class Connection:
    """Connects, and comes back after every loss that allows it."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        *,
        token: TokenSource | None = None,
        name: str | None = None,
        on_state: OnState | None = None,
    ) -> None:
        self.conversation = Conversation(
            clock, name=name, random=random.random, wake=self._wake, told=self._told, renew=self._renew
        )
        self._transport = transport
        self._clock = clock
        self._token = token
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._opening: asyncio.Future[None] = self._loop.create_future()
        self._running: asyncio.Task[None] | None = None
        self._receiving: asyncio.Task[tuple[int, str]] | None = None
        self._idle_writer: asyncio.Future[None] | None = None
        self._retry_now = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_told_lost = False

    async def open(self) -> None:
        """Return with the first answered hello. Raises Closed when the server refuses for good."""
        self._running = self._loop.create_task(self._run(), name="mq-connection")
        await asyncio.shield(self._opening)

    async def close(self) -> None:
        """End for good, telling the server."""
        self.conversation.close()
        if self._receiving is not None:
            self._receiving.cancel()
        self._retry_now.set()
        for task in (self._running, *self._tasks):
            if task is not None:
                await asyncio.wait({task})
        if self._opening.done():
            self._opening.exception()  # no caller waits for it any more
        else:
            self._opening.cancel()

    async def token(self) -> str | None:
        """The token for a connection or request that begins now. Raises ConnectionLost when none can be had."""
        if self._token is None or isinstance(self._token, str):
            return self._token
        try:
            token = self._token()
            return await token if inspect.isawaitable(token) else token
        except Exception as error:
            raise ConnectionLost(f"the token function failed: {error!r}") from error

    def request(self, fields: dict[str, object], *, repeatable: bool = True) -> asyncio.Future[Frame]:
        """Send a command; the future is its answer, or Refused, ConnectionLost or Closed."""
        answer: asyncio.Future[Frame] = self._loop.create_future()
        self.conversation.request(fields, resolve(answer), refuse(answer), repeatable=repeatable)
        return answer

    def spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run something beside, until it is done; `close` waits for it."""

        async def guarded() -> None:
            try:
                await work()
            except MqError as error:
                log.debug("given up: %s", error)

        task = self._loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---------------------------------------------------------------------------------------------------- connections

    async def _run(self) -> None:
        try:
            await self._dial_again_and_again()
        finally:
            # Also when this task was cancelled, as `asyncio.run` does at its end: no caller must wait for answers then.
            self.conversation.close()

    async def _dial_again_and_again(self) -> None:
        conversation = self.conversation
        while conversation.state != "closed":
            conversation.dialling()
            try:
                async with asyncio.timeout(HELLO_S):
                    socket = await self._transport.open_socket(await self.token())
            except ConnectionLost as error:
                conversation.lost(error)
            except TimeoutError:
                conversation.lost(ConnectionLost("the server did not answer the handshake"))
            except MqError as error:
                conversation.close(error)
            else:
                await self._converse(socket)
            if conversation.state == "waiting":
                await self._wait(conversation.wait_s)

    async def _wait(self, wait_s: float) -> None:
        timer = self._clock.later(wait_s, self._retry_now.set)
        await self._retry_now.wait()
        timer.cancel()
        if self.conversation.state != "closed":
            self._retry_now.clear()

    async def _converse(self, socket: Socket) -> None:
        """One socket, from hello to its end."""
        conversation = self.conversation
        if conversation.error is not None:
            await socket.close(1000)
            return
        receiving = self._loop.create_task(socket.run(conversation.received_text, conversation.received_binary))
        self._receiving = receiving
        broken: list[Exception] = []

        def give_up(error: Exception) -> None:
            broken.append(error)
            receiving.cancel()

        writing = self._loop.create_task(self._write(socket, give_up))
        conversation.opened()
        watch = _Watch(self._clock, give_up, conversation)
        try:
            await asyncio.wait({receiving})
        finally:
            watch.stop()
            receiving.cancel()
            writing.cancel()
            await asyncio.wait({receiving, writing})
            self._receiving = None
        if conversation.error is None:
            self._ended(receiving, broken[0] if broken else None)
        await socket.close(1000 if isinstance(conversation.error, Closed) and conversation.error.code == 1000 else LOST)

    def _ended(self, receiving: asyncio.Task[tuple[int, str]], broken: Exception | None) -> None:
        if broken is not None:
            self.conversation.lost(broken)
        elif receiving.cancelled():
            self.conversation.lost(ConnectionLost("the connection was given up"))
        elif (error := receiving.exception()) is None:
            self.conversation.closed(*receiving.result())
        elif isinstance(error, ConnectionLost):
            self.conversation.lost(error)
        elif isinstance(error, MqError):
            self.conversation.close(error)
        else:
            log.error("a frame could not be dealt with", exc_info=error)
            self.conversation.close(Undecodable(f"a frame that could not be dealt with: {error!r}"))

    async def _write(self, socket: Socket, give_up: Callable[[Exception], None]) -> None:
        conversation = self.conversation
        try:
            while True:
                while conversation.out:
                    frames, conversation.out = conversation.out, []
                    for data, is_binary in frames:
                        await socket.send(data, is_binary)
                self._idle_writer = self._loop.create_future()
                await self._idle_writer
        except ConnectionLost as error:
            # The reader gets the server's close code, which says whether to come back; it only must not wait for ever.
            await asyncio.sleep(CLOSE_S)
            give_up(error)

    # ------------------------------------------------------------------------------------------- what the core calls

    def _wake(self) -> None:
        writer = self._idle_writer
        if writer is not None:
            self._idle_writer = None
            if not writer.done():
                writer.set_result(None)

    def _told(self, state: ConnectionState, reason: Exception | None) -> None:
        if state == "open":
            if not self._opening.done():
                self._opening.set_result(None)
            if self._is_told_lost:
                log.info("connected again")
            self._is_told_lost = False
        elif state == "closed" and not self._opening.done():
            self._opening.set_exception(self.conversation.error or Closed("the client was closed"))
        elif state == "waiting" and not self._is_told_lost:  # once for each outage
            self._is_told_lost = True
            log.warning("%s; trying again", reason)
        if self._on_state is not None:
            try:
                self._on_state(state, reason)
            except Exception as error:
                self._loop.call_exception_handler({"message": "on_state of mq.connect failed", "exception": error})

    def _renew(self) -> None:
        if callable(self._token):  # the same token would expire again
            self.spawn(self._authenticate)

    async def _authenticate(self) -> None:
        # If it fails the server closes with 4005 when the old token ends; the next connection asks for a token again.
        await self.request({"op": "auth", "token": await self.token()}, repeatable=False)


class _Watch:
    """Looks after one socket: hello must be answered in time, and afterwards silence be broken."""

    def __init__(self, clock: Clock, give_up: Callable[[Exception], None], conversation: Conversation) -> None:
        self._clock = clock
        self._give_up = give_up
        self._conversation = conversation
        self._timer: Timer = clock.later(HELLO_S, self._look)

    def _look(self) -> None:
        if self._conversation.state == "connecting":
            self._give_up(ConnectionLost("the server did not answer hello"))
            return
        try:
            after_s = self._conversation.watch()
        except ConnectionLost as error:
            self._give_up(error)
        else:
            self._timer = self._clock.later(after_s, self._look)

    def stop(self) -> None:
        """The socket is gone."""
        self._timer.cancel()


def resolve(future: asyncio.Future[Frame]) -> Callable[[Frame], None]:
    """Settles a future with an answer, unless its owner has gone."""

    def answered(frame: Frame) -> None:
        if not future.done():
            future.set_result(frame)

    return answered


def refuse(future: asyncio.Future[Frame]) -> Callable[[Exception], None]:
    """Settles a future with an error. It need not be retrieved."""

    def failed(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)
            future.exception()  # marks it as seen

    return failed
