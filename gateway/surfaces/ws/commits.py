"""What a member has done of its partitions, and committing it.

Acks that come while a commit runs go into the next one, together (`merged.py`); each partition is answered by itself.
With `auto_ack` it is the server that acks: what the transport has taken, now and then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from gateway.api.tasks import Tasks
from gateway.errors import RequestError
from gateway.groups.machines.errors import GroupError, StaleGeneration, UnknownMember
from gateway.groups.protocol import Groups, MemberKey, OffsetCommit, TopicPartition
from gateway.surfaces.ws.commands import UpTo
from gateway.surfaces.ws.feed import FedPartition
from gateway.surfaces.ws.merged import Merged
from gateway.surfaces.ws.protocol import NOT_OWNER
from store.errors import StoreError, UnknownQueue

log = logging.getLogger(__name__)

AUTO_COMMIT_MS = 1_000
"""How often what was delivered is committed for a client that asked for it."""


class Owned:
    """One partition of this member."""

    __slots__ = ("acked", "begins_at", "drained", "fed", "went_back")

    def __init__(self, fed: FedPartition) -> None:
        self.fed = fed
        self.acked = fed.offset  # next offset the client wants committed
        self.begins_at = fed.offset  # what lies before it was done under former owners, this member among them
        self.went_back = 0  # seeks to before what is acked, that no commit has followed
        self.drained: asyncio.Event | None = None  # of the revocation that is going on: nothing more is to be acked

    def sought(self) -> None:
        """The client went elsewhere: what lies there may be acked too."""
        self.begins_at = min(self.begins_at, self.fed.offset)
        self.went_back += self.fed.offset < self.acked

    @property
    def is_to_be_acked(self) -> bool:
        """Whether `auto_ack` has something to commit. What the client acked beyond it stands, until it seeks back."""
        return self.fed.delivered > self.acked or self.went_back > 0

    @property
    def draining(self) -> bool:
        """It is being revoked."""
        return self.drained is not None

    def look(self) -> None:
        """What was sent may be done with now."""
        if self.acked >= self.fed.offset:
            self.finish()

    def finish(self) -> None:
        """Nothing more of it is waited for."""
        if self.drained is not None:
            self.drained.set()


class Commits:
    """The commits of one member, one at a time."""

    def __init__(
        self,
        group: str,
        owned: Mapping[TopicPartition, Owned],
        member: Callable[[], MemberKey],
        *,
        auto: bool,
        groups: Groups,
        tasks: Tasks,
    ) -> None:
        """`owned`, `member`: what the member has, and who it is, at the time."""
        self._group = group
        self._owned = owned
        self._member = member
        self._auto = auto
        self._groups = groups
        self._merged: Merged[UpTo, RequestError | None] = Merged(self._commit, tasks)

    async def ask(self, up_to: Sequence[UpTo]) -> Sequence[RequestError | None]:
        """Commit; for each partition None when that is durable, or why not. Raises GroupError, StoreError."""
        return await self._merged.ask(up_to)

    async def settled(self) -> None:
        """Wait until all that was asked for is done, and with `auto` what was delivered."""
        await self._commit_delivered()
        await self._merged.settled()

    async def now_and_then(self) -> NoReturn:
        """Commit what was delivered."""
        while True:
            await asyncio.sleep(AUTO_COMMIT_MS / 1000)
            await self._commit_delivered()

    async def _commit_delivered(self) -> None:
        if not self._auto:
            return
        news = [UpTo(*key, owned.fed.delivered) for key, owned in self._owned.items() if owned.is_to_be_acked]
        if news:
            try:
                await self.ask(news)
            except (GroupError, StoreError) as error:
                log.warning("group=%s could not commit: %s", self._group, error)

    async def _commit(self, up_to: list[UpTo]) -> list[RequestError | None]:
        """Commit what may be; for each partition None, or why not."""
        answers: list[RequestError | None] = []
        commits: dict[TopicPartition, OffsetCommit] = {}
        went_back: dict[TopicPartition, int] = {}
        for fed in up_to:
            key = TopicPartition(fed.topic, fed.partition)
            answer = None
            owned = self._owned.get(key)
            if owned is None or fed.next_offset < owned.begins_at:
                answer = _not_owner(key)  # or what it had been sent as an owner before: the group has come further
            else:
                commits[key] = OffsetCommit(*key, fed.next_offset)
                went_back[key] = owned.went_back
            answers.append(answer)
        refused = await self._write(commits)
        for key, commit in commits.items():
            owned = self._owned.get(key)
            if key not in refused and owned is not None:
                owned.acked = commit.offset
                owned.went_back = max(owned.went_back - went_back[key], 0)  # not those of while it was written
                owned.look()
        keys = [TopicPartition(fed.topic, fed.partition) for fed in up_to]
        return [
            _not_owner(key) if answer is None and key in refused else answer
            for key, answer in zip(keys, answers, strict=True)
        ]

    async def _write(self, commits: Mapping[TopicPartition, OffsetCommit]) -> set[TopicPartition]:
        """Write them; those that were refused because they are another's by now, or their topic has gone."""
        if not commits:
            return set()
        try:
            await self._groups.commit(self._group, list(commits.values()), self._member())
        except (StaleGeneration, UnknownMember, UnknownQueue):
            if len(commits) == 1:
                return set(commits)
            refused: set[TopicPartition] = set()
            for key, commit in commits.items():  # one that was lost does not take the others with it
                refused |= await self._write({key: commit})
            return refused
        return set()


def _not_owner(key: TopicPartition) -> RequestError:
    return RequestError(
        NOT_OWNER,
        f"Partition {key.partition} of {key.topic} is not this member's; what was sent goes to its owner.",
    )
