"""Subscriptions that know how far they are in each partition: readers and streams. See mq/subscription.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mq.frames import Frame, State
from mq.progress import Partitions, Progress, ProgressTable, partitions_of, read_cursor
from mq.subscription import Held, Subscription

T = TypeVar("T")


class PartitionedSubscription(Subscription[T]):
    """What readers and streams have in common: progress in partitions, credit that is returned here, seeks."""

    _progress: ProgressTable
    _hand: Held | None = None
    _is_done_by_asking = True
    """Asking for the next message says that the one before is done."""
    _is_caught_up = False
    _on_assigned: Callable[[Partitions], object] | None = None
    _on_caught_up: Callable[[], object] | None = None

    async def seek(self, to: object) -> None:
        """Go on from another offset: "earliest", "latest", {"timestamp": epoch ms}, a cursor, or {topic: {partition:
        offset}}. What waits here is dropped; partitions that `to` does not name stay where they are."""
        await self.ready()
        answered = self._loop.create_future()

        def moved(answer: Frame) -> None:
            self._sync()
            if self._hand is not None:
                self._hand.is_void = True
            self._is_caught_up = False
            self._drop(lambda held: True)
            for topic, partition, offset in read_cursor(answer.cursor):
                if (progress := self._progress.get(topic, partition)) is not None:
                    progress.seek(offset, commits=True)
            answered.set_result(None)

        self._conversation.request({"op": "seek", "sub": self.sub, "to": to}, moved, _fail(answered))
        await answered

    # ----------------------------------------------------------------------------------------------- for the connection

    def _told(self, frame: Frame) -> None:
        if frame.op == "assigned":
            self._go_on(frame.cursor, is_fresh=False)
            self._call(self._on_assigned, frame.partitions)
        elif frame.op == "revoked":
            self._revoked(frame)
        elif frame.op == "caught_up" and not self._is_caught_up:
            self._is_caught_up = True
            self._call(self._on_caught_up)

    def _subscribed(self, answer: Frame) -> None:
        self._goes_on(answer.partitions, answer.cursor, is_fresh=True)

    def _kept(self, state: State) -> None:
        self._window.resumed(state.credit)
        self._permit()
        self._goes_on(state.partitions, state.cursor, is_fresh=False)

    def _goes_on(self, partitions: Partitions, cursor: str, *, is_fresh: bool) -> None:
        """What `subscribe` and `hello` answer alike: the partitions there are now, and where they go on."""
        here = set(self._progress.of(partitions))
        # One that is being given up is not named; the session still has it, and says so again.
        lost = [
            progress for progress in self._progress if progress not in here and (is_fresh or not progress.is_revoked)
        ]
        self._left(lost, is_fresh=is_fresh)
        news = self._go_on(cursor, is_fresh=is_fresh)
        if news:
            self._call(self._on_assigned, partitions_of(news))

    def _left(self, lost: list[Progress], *, is_fresh: bool) -> None:
        """These partitions are no longer ours."""
        self._lose(lost)

    def _go_on(self, cursor: str, *, is_fresh: bool) -> list[Progress]:
        """Messages of these partitions follow; returns those that were not here. To a fresh subscription the cursor
        says what is committed, to one that goes on what was sent."""
        news = []
        for topic, partition, offset in read_cursor(cursor):
            progress = self._progress.get(topic, partition)
            if progress is None:
                news.append(self._progress.add(topic, partition, offset))
            else:
                self._rejoined(progress, offset, is_fresh=is_fresh)
        return news

    def _rejoined(self, progress: Progress, offset: int, *, is_fresh: bool) -> None:
        """A partition that was here goes on at this offset."""

    def _revoked(self, frame: Frame) -> None:
        self._lose(self._progress.of(frame.partitions))

    def _lose(self, lost: list[Progress]) -> None:
        """Forget partitions: nothing of them is given, or committed, any more."""
        for progress in lost:
            self._progress.drop(progress)
        if lost:
            self._drop(lambda held: held.progress is not None and held.progress.is_gone)

    # ------------------------------------------------------------------------------------------------- frames, credit

    def _take_in(self, frame: Frame) -> None:
        messages = frame.messages
        if not messages:
            return
        for message in messages:
            message._source = self
        last = messages[-1]
        self._hold(messages, last.topic, last.partition, last.place + 1, len(messages))

    def _hold(self, items: list[Any], topic: str, partition: int, end: int, cost: int) -> None:
        """Keep what a frame has that is to be given: nothing of a partition that is not ours, or that was given
        before."""
        self._window.received(cost)
        progress = self._progress.get(topic, partition)
        if self._is_over or progress is None or progress.is_gone:
            self._window.taken(cost)
            self._permit_if_due()
            return
        progress.next = end
        if items[0].place < progress.given:
            self._sync()
            items = [item for item in items if item.place >= progress.given]
        held = Held(items, progress, end, cost)
        progress.frames += 1
        if items:
            self._inbox.append(held)
            self._wake()
        else:
            self._release(held)

    def _release(self, held: Held) -> None:
        """A frame is worked off, or dropped: return its credit."""
        held.is_dropped = True
        if held.progress is not None:
            held.progress.frames -= 1
        self._window.taken(held.cost)
        self._permit_if_due()

    def _permit_if_due(self) -> None:
        if self._window.is_due:
            self._permit()

    def _permit(self) -> None:
        if self._is_attached and self._conversation.state == "open":  # else the next connection compares accounts
            count = self._window.returned()
            if count > 0:
                self._conversation.tell({"op": "permit", "sub": self.sub, "messages": count})

    def _drop(self, is_meant: Callable[[Held], bool]) -> None:
        """Drop frames that wait here, and the rest of the one in hand."""
        dropped = [held for held in self._inbox if is_meant(held)]
        for held in dropped:
            self._inbox.remove(held)
            self._release(held)
        hand = self._hand
        if hand is not None and not hand.is_dropped and is_meant(hand):
            self._sync()
            self._release(hand)

    # ------------------------------------------------------------------------------------------------------ consuming

    def _take_in_hand(self, held: Held) -> None:
        self._hand = held
        self._last = None

    def _sync(self) -> None:
        """Bring the progress of the frame in hand up to date: it moves a frame at a time, not with each message."""
        hand, last = self._hand, self._last
        if hand is None or last is None or hand.is_void or hand.is_dropped:
            return
        progress = hand.progress
        assert progress is not None
        progress.given = max(progress.given, last.place + 1)
        if self._is_done_by_asking and not self._is_whole:
            progress.done = max(progress.done, last.place)

    def _finish_hand(self) -> None:
        hand = self._hand
        if hand is None:
            return
        self._sync()
        self._hand = None
        progress = hand.progress
        assert progress is not None
        if not hand.is_void:
            if not hand.is_dropped:
                progress.given = max(progress.given, hand.end)
            if self._is_done_by_asking and not progress.is_gone:
                progress.done = progress.given
        if not hand.is_dropped:
            self._release(hand)


def _fail(future: Any) -> Callable[[Exception], None]:
    def failed(error: Exception) -> None:
        if not future.done():
            future.set_exception(error)

    return failed
