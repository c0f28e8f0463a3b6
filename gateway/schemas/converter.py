"""Processes that convert values (`child.py`), begun when there is something to convert.

    a process ends     another one is asked for what was not answered, one value at a time. When that ends, by a signal
                       of its own or for its memory, the value it was at is Unreadable, and another process goes on with
                       the next one, while there is time
                       The value is remembered: each read of its topic would cost as much again
    it is killed       another one is asked for the same value. When that is killed too, the value is Unreadable
    it cannot run      twice: 503. That says nothing of the value, and no reader may pass it over for that
    a caller is gone   the process that worked for it is ended: its answer would be read by the next caller
    all are busy       callers wait, so many of them; more are refused

What is asked for together is converted in order, and a long answer may end early: see `Schemas.deserialize`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from gateway.api.schemas import Converted, Unreadable
from gateway.errors import OVERLOADED, RequestError
from gateway.schemas.request import (
    ANSWERED,
    ASKED,
    DONE,
    LATER,
    MEMORY_BYTES_MAX,
    NO_MEMORY,
    REQUEST_S,
    VALUE_CPU_S,
    Request,
    SchemaText,
)
from store.limits import KiB

log = logging.getLogger(__name__)

PROCESSES_MAX = 2
"""Of one server process. One value that takes all the time it may leaves the other for the rest."""

WAITING_MAX = 64
"""Requests that wait for a process."""

READ_BYTES = 256 * KiB
"""Of answers that are read at once."""

HARMFUL_MAX = 1000
"""Values that have ended a process, and are remembered."""

STUCK_S = 60.0
"""A process that says nothing for so long has lost its way (its bound is processor time), and is ended."""


class Converter:
    """The processes of one server. `close` ends them."""

    def __init__(self, *, processes_max: int = PROCESSES_MAX, waiting_max: int = WAITING_MAX) -> None:
        self._idle: list[_Child] = []
        self._turns = asyncio.Semaphore(processes_max)
        self._waiting_count = 0
        self._waiting_max = waiting_max
        self._harmful: OrderedDict[int, Unreadable] = OrderedDict()  # by hash: 64 bits, and salted

    async def convert(
        self, act: str, schemas: Sequence[SchemaText], values: Sequence[tuple[int, bytes]]
    ) -> list[Converted]:
        """What becomes of values, each with the number of its schema: of the first ones, where all would take too long.
        Raises RequestError 503/50351 when too many wait."""
        if not values:
            return []
        if self._waiting_count >= self._waiting_max:
            raise RequestError(
                OVERLOADED,
                f"{self._waiting_max} requests wait to be serialized or deserialized; try again.",
                retriable=True,
                retry_after_ms=1000,
            )
        self._waiting_count += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting_count -= 1
        try:
            return await self._convert(act, schemas, values)
        finally:
            self._turns.release()

    async def _convert(
        self, act: str, schemas: Sequence[SchemaText], values: Sequence[tuple[int, bytes]]
    ) -> list[Converted]:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + REQUEST_S
        made: list[Converted] = []
        one_by_one = False
        killed_at = -1
        while len(made) < len(values) and not (made and loop.time() >= deadline_s):
            if (harmful := self._harmful.get(_key_of(act, schemas, values[len(made)]))) is not None:
                made.append(harmful)
                continue
            asked = values[len(made) : self._harmless(act, schemas, values, len(made) + 1)]
            child = await self._taken()
            try:
                is_whole = await child.ask(Request(act, schemas, asked, one_by_one), made)
            except _Ended as ended:
                if (
                    not one_by_one and len(asked) > 1
                ):  # at which value is found by asking for what was not answered again
                    one_by_one = True
                    continue
                # Who is ended from outside may not have looked at the value.
                if ended.is_sure or (ended.is_killed and killed_at == len(made)):
                    self._remember(_key_of(act, schemas, values[len(made)]), Unreadable(ended.why))
                    made.append(Unreadable(ended.why))
                elif killed_at != len(made):
                    killed_at = len(made)
                elif made:
                    break
                else:
                    raise RequestError(OVERLOADED, "The process that converts values ends.", retriable=True) from None
                continue
            except BaseException:
                child.end()
                raise
            self._idle.append(child)
            if not is_whole:
                break
        return made

    def _harmless(
        self, act: str, schemas: Sequence[SchemaText], values: Sequence[tuple[int, bytes]], start: int
    ) -> int:
        """Up to which index from `start` on no value is known to end a process."""
        if not self._harmful:
            return len(values)
        known = (at for at in range(start, len(values)) if _key_of(act, schemas, values[at]) in self._harmful)
        return next(known, len(values))

    def _remember(self, key: int, why: Unreadable) -> None:
        self._harmful[key] = why
        if len(self._harmful) > HARMFUL_MAX:
            self._harmful.popitem(last=False)

    async def _taken(self) -> _Child:
        """A process that nobody uses. Raises RequestError 503/50351."""
        while self._idle:
            child = self._idle.pop()
            if not child.has_ended:
                return child
            child.end()
        try:
            return await _Child.begin()
        except OSError as error:
            log.error("no process to convert values can be begun error=%s", error)
            raise RequestError(OVERLOADED, "No process to convert values can be begun.", retriable=True) from error

    async def close(self) -> None:
        """End the processes."""
        for child in self._idle:
            child.end()
        await asyncio.gather(*(child.gone() for child in self._idle))
        self._idle.clear()


def _environment() -> dict[str, str]:
    """What Python needs to run; what else the server was told is not for a process that reads what others send."""
    wanted = ("PATH", "PYTHON", "LD_", "LANG", "LC_")
    return {name: value for name, value in os.environ.items() if name.startswith(wanted)}


def _key_of(act: str, schemas: Sequence[SchemaText], value: tuple[int, bytes]) -> int:
    index, content = value
    return hash((act, schemas[index], content))


class _Ended(Exception):
    """A process has ended while it worked. `is_sure`: by the value that it was at. `is_killed`: by SIGKILL, perhaps for
    the memory that the value takes."""

    def __init__(self, why: str, *, is_sure: bool, is_killed: bool = False) -> None:
        super().__init__(why)
        self.why = why
        self.is_sure = is_sure
        self.is_killed = is_killed


class _Answers:
    """Reads what a process answers. `made` gets what becomes of the values, in order."""

    def __init__(self, made: list[Converted], count: int) -> None:
        self._made = made
        self._read = bytearray()
        self.left_count = count
        self.is_cut = False
        """It left the last values for later."""

    def add(self, some: bytes) -> None:
        """The next bytes of it."""
        read, made = self._read, self._made
        read += some
        at, head = 0, ANSWERED.size
        while self.left_count and len(read) >= at + head:
            status, size = ANSWERED.unpack_from(read, at)
            if status == LATER:
                self.left_count, self.is_cut = 0, True
                break
            if len(read) < at + head + size:
                break
            data = bytes(read[at + head : at + head + size])
            made.append(data if status == DONE else Unreadable(data.decode("utf-8", "replace")))
            at += head + size
            self.left_count -= 1
        del read[:at]


class _Child:
    """One process."""

    def __init__(self, process: Process, directory: str) -> None:
        self._process = process
        self._directory = directory

    @property
    def has_ended(self) -> bool:
        """Whether it cannot be asked any more."""
        assert self._process.stdout is not None
        return self._process.returncode is not None or self._process.stdout.at_eof()

    @classmethod
    async def begin(cls) -> _Child:
        """A new process. Raises OSError."""
        directory = tempfile.mkdtemp(
            prefix="mq-schemas-"
        )  # for protoc's files; it may be killed before it removes them
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "gateway.schemas.child", directory,
                stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=READ_BYTES,
                env=_environment(),
            )  # fmt: skip
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        return cls(process, directory)

    async def ask(self, request: Request, made: list[Converted]) -> bool:
        """Add what becomes of the values, in order. False when it left the last ones for later. Raises _Ended, after
        which the next value is the one that it was at."""
        writer, reader = self._process.stdin, self._process.stdout
        assert writer is not None
        assert reader is not None
        said = msgspec.msgpack.encode(request)
        try:
            writer.write(ASKED.pack(len(said)))
            writer.write(said)
            del said
            answers = _Answers(made, len(request.values))
            while answers.left_count:
                async with asyncio.timeout(STUCK_S):
                    some = await reader.read(READ_BYTES)
                if not some:
                    raise ConnectionError
                answers.add(some)
            return not answers.is_cut
        except TimeoutError:
            self.end()
            raise _Ended(f"nothing has come of it for {STUCK_S:.0f} s", is_sure=True) from None
        except (ConnectionError, RuntimeError):  # uvloop's, for a closed pipe
            raise await self._ended() from None

    async def _ended(self) -> _Ended:
        status = await self._process.wait()
        self.end()
        log.warning("a process that converts values has ended pid=%d status=%d", self._process.pid, status)
        if status == -signal.SIGPROF:
            why = f"it takes more than {VALUE_CPU_S} s of processor time"
        elif status == NO_MEMORY:
            why = f"it takes more than {MEMORY_BYTES_MAX} bytes of memory"
        else:
            why = "it cannot be converted: nested too deep, too large, or the library of its format fails at it"
        is_killed = status == -signal.SIGKILL
        return _Ended(why, is_sure=status == NO_MEMORY or (status < 0 and not is_killed), is_killed=is_killed)

    async def gone(self) -> None:
        """Return when the process has ended."""
        await self._process.wait()

    def end(self) -> None:
        """End the process at once."""
        with suppress(ProcessLookupError):
            self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
