"""An event loop in a thread, for callers that do not await: `mq.sync` and `mq.kombu`."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mq.errors import Closed, MqError

R = TypeVar("R")


class LoopThread:
    """An event loop in a daemon thread of its own, of the process that made it."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mq", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def call(self, make: Callable[[], Awaitable[R]], timeout_s: float | None = None) -> R:
        """Await what `make` makes, over there; its result. Raises TimeoutError, and cancels it, when it takes
        longer."""
        if os.getpid() != self._pid:
            raise MqError("this client was opened before the process forked: open another in each process")
        if threading.current_thread() is self._thread:
            raise MqError("a hook must not call the client of its own loop: it would wait for itself")
        if not self._thread.is_alive():
            raise Closed("the client is closed: use it inside `with mq.sync.connect(...)`")

        async def made() -> R:
            return await make()

        future = asyncio.run_coroutine_threadsafe(made(), self._loop)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()  # also when the caller was interrupted
            raise

    def soon(self, call: Callable[..., object], *arguments: object) -> None:
        """Call it over there, and do not wait. After a fork, and once the thread has ended, nothing happens."""
        if os.getpid() == self._pid and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def stop(self) -> None:
        """End the thread."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self.call(self._loop.shutdown_asyncgens)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
