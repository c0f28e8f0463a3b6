"""Streams: the partitions of a topic are shared out among the members of a group; each message goes to one of them, in
order, and what a member is done with is committed: now and then, before a partition is given up, and at the end.

Another member goes on behind the last commit. A message that is in hand is not done; leaving the loop, by `break` or an
exception, leaves it so.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar

from mq.clock import Clock
from mq.connection import Connection
from mq.errors import MqError, Refused
from mq.frames import Frame
from mq.message import Message
from mq.partitioned import PartitionedSubscription
from mq.progress import Partitions, Progress, ProgressTable, partitions_of, write_cursor
from mq.read import CREDIT, Start, start_field
from mq.subscription import What, quietly
from mq.values import Decode

T = TypeVar("T")

Commit: TypeAlias = Literal["auto", "manual"]

COMMIT_INTERVAL_S = 1.0


class Stream(PartitionedSubscription[T]):
    """Messages of the partitions that the group gives this member. `async with` and iterate; with `commit="manual"`
    only what `message.ack()` names is done."""

    mode: ClassVar[str] = "stream"

    def __init__(
        self,
        connection: Connection,
        clock: Clock,
        sub: str,
        what: What,
        decode: Decode,
        *,
        group: str,
        start: Start | None,
        member: str | None,
        room: str | None,
        commit: Commit,
        commit_interval_s: float,
        credit: int | None,
        on_assigned: Callable[[Partitions], object] | None,
        on_revoked: Callable[[Partitions, bool], object] | None,
        on_over: Callable[[Any], object],
    ) -> None:
        if commit not in ("auto", "manual"):
            raise MqError(f'commit: must be "auto" or "manual", and is {commit!r}')
        self._start = None if start is None else start_field(start)
        most = connection.conversation.limits.max_credit
        super().__init__(connection, clock, sub, what, decode, credit=min(credit or CREDIT, most), on_over=on_over)
        self.member = member or f"py-{secrets.token_hex(8)}"
        """The member's name. A restarted program that uses the same one takes its own partitions again."""
        self._room = room
        self._progress = ProgressTable()
        self._group = group
        self._is_done_by_asking = commit == "auto"
        self._commit_interval_s = commit_interval_s
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._timer = clock.later(commit_interval_s, self._now_and_then)

    async def commit(self) -> None:
        """Commit what is done; returns when that is durable. Raises Refused, Closed."""
        if self._is_over:
            raise self._error or MqError("commit: the stream is closed")
        await self.ready()
        self._sync()
        await self._commit(self._progress)

    def settle(self, op: str, message: Message[Any], fields: dict[str, object]) -> Awaitable[None]:
        """`message.ack()`: its partition is done up to and including it. The next commit says so."""
        if op != "ack":
            raise MqError(f"{op}: a stream has no leases; read as a queue: client.group(name).queue(topic)")
        self._sync()
        progress = self._progress.get(message.topic, message.partition)
        if progress is not None and progress.done <= message.place < progress.given:
            progress.done = message.place + 1
            self._release_drained()
        done: Any = self._loop.create_future()
        done.set_result(None)
        return done  # type: ignore[no-any-return]

    # ----------------------------------------------------------------------------------------------- for the connection

    def _command(self) -> dict[str, object]:
        self._drop(lambda held: True)  # it comes again, from what is committed on
        for progress in self._progress:
            progress.next = progress.given
        return {
            "group": self._group,
            "member": None if self._what.queue is not None else self.member,
            "room": self._room,
            "start": self._start,
            "credit": self._window.opened(),
            "auto_credit": False,
        }

    def _left(self, lost: list[Progress], *, is_fresh: bool) -> None:
        if not is_fresh and lost:  # their revocation may have begun while we were away
            cursor = self._news(lost)
            if cursor:
                self._connection.spawn(lambda: self._tell(cursor))
        told = [progress for progress in lost if not progress.is_revoked]
        self._lose(lost)
        if told:
            self._call(self._on_revoked, partitions_of(told), True)

    def _rejoined(self, progress: Progress, offset: int, *, is_fresh: bool) -> None:
        progress.is_revoked = False
        if not is_fresh and offset >= progress.next:
            progress.next = offset  # more, where a filter leaves records out
            return
        self._sync()
        self._drop(lambda held: held.progress is progress)
        if (
            (offset < progress.committed or offset > progress.given)
            and self._hand is not None
            and self._hand.progress is progress
        ):
            self._hand.is_void = True
        progress.rejoin(offset)

    def _revoked(self, frame: Frame) -> None:
        concerned = self._progress.of(frame.partitions)
        told = [progress for progress in concerned if not progress.is_revoked]
        if frame.lost:
            self._lose(concerned)
        else:
            drain_s = frame.drain_ms / 1000
            drain_by_s = self._clock.monotonic_s() + drain_s
            for progress in told:
                progress.is_revoked = True
                progress.drain_by_s = drain_by_s
            self._clock.later(drain_s, lambda: self._drained([one for one in told if one.drain_by_s == drain_by_s]))
            if not concerned:  # given up already, but the connection was lost before it was told
                self._connection.spawn(lambda: self._give_up(None, frame.partitions))
        if told:
            self._call(self._on_revoked, partitions_of(told), frame.lost)
        self._release_drained()

    def _drained(self, partitions: Iterable[Progress]) -> None:
        """The time to finish revoked partitions is over: the server has taken those that are left."""
        late = [progress for progress in partitions if progress.is_revoked and not progress.is_gone]
        if late and not self._is_over:
            self._lose(late)
            self._call(self._on_revoked, partitions_of(late), True)

    def _release_drained(self) -> None:
        """Give up revoked partitions of which the consumer has nothing in hand."""
        drained = [
            progress
            for progress in self._progress
            if progress.is_revoked and not progress.frames and progress.given <= progress.done
        ]
        if drained:
            cursor, partitions = self._news(drained), partitions_of(drained)
            for progress in drained:
                self._progress.drop(progress)
            self._connection.spawn(lambda: self._give_up(cursor, partitions))

    async def _give_up(self, cursor: str | None, partitions: Partitions) -> None:
        if cursor:
            await quietly(self._tell(cursor))  # else the next owner gets them again
        # If the connection is lost the server says again what it wants back.
        await self._ask({"op": "release", "partitions": partitions}, repeatable=False)

    def _finish_hand(self) -> None:
        super()._finish_hand()
        self._release_drained()

    # ------------------------------------------------------------------------------------------------------- commits

    def _now_and_then(self) -> None:
        if self._is_over:
            return
        self._sync()
        if self._conversation.is_sending and self._is_attached and self._news(self._progress):
            self._connection.spawn(lambda: self._commit(self._progress))
        self._timer = self._clock.later(self._commit_interval_s, self._now_and_then)

    @staticmethod
    def _news(partitions: Iterable[Progress]) -> str:
        """The cursor of what is done and not committed."""
        return write_cursor(
            (progress for progress in partitions if progress.done != progress.committed), lambda progress: progress.done
        )

    async def _commit(self, partitions: Iterable[Progress]) -> None:
        news = [progress for progress in partitions if progress.done != progress.committed]
        if not news:
            return
        done = [progress.done for progress in news]
        # While the subscription is being closed nothing waits for another connection.
        answer = await self._ask({"op": "ack", "cursor": self._news(news)}, repeatable=not self._is_closing)
        refused: Refused | None = None
        for progress, offset, result in zip(news, done, answer.results, strict=True):
            if result.ok:
                progress.committed = offset
            else:
                refused = Refused(result.error, result.error_code)
        if refused is not None:
            raise refused

    async def _tell(self, cursor: str) -> None:
        """Commit partitions that are ours no longer."""
        await self._ask({"op": "ack", "cursor": cursor}, repeatable=False)

    async def _settle_all(self) -> None:
        self._sync()
        await self._commit(self._progress)  # else those who come after get it again

    def _finish(self, error: Exception | None) -> None:
        super()._finish(error)
        self._timer.cancel()
