"""Consumer groups between the nodes of a cluster: given to another one, taken from one, refused where they are not.

The steps, and what a crash leaves, are in gateway/groups/coordinator/handover.py; who has a group, a key of the
metadata says (gateway/cluster/node.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, TypeVar

from gateway.api.cluster import GROUPS
from gateway.brokers.base import AnswerLost
from gateway.cluster.metadata import MetadataError
from gateway.cluster.mover import UnknownBroker
from gateway.cluster.node import ClusterNode
from gateway.groups.coordinator.context import Belonging
from gateway.groups.coordinator.handover import Moved
from gateway.groups.coordinator.service import Coordinator
from gateway.groups.machines.broadcast import group_of
from gateway.groups.machines.errors import GroupElsewhere, GroupError, GroupUnowned
from gateway.groups.machines.membership import Share
from gateway.groups.protocol import LightOffsets, MemberKey, Receive, Received
from store.errors import BrokerLacks, Overloaded, StoreError
from store.uncancelled import to_its_end

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

GIVE_ERRORS = (GroupError, StoreError, MetadataError, UnknownBroker)
"""What `GroupMoves.give` raises when a group stays where it is."""


CLAIMED_AT_ONCE = 50
"""Names of groups that a start asks the metadata for at a time, of those that have no owner yet."""

RELEASE_INTERVAL_S = 60.0
"""How often names are tried again that could not be let go of."""


class GroupMoves:
    """The groups of a node of a cluster. `begin` before they are used, then `run` once they are written."""

    def __init__(self, groups: Coordinator, node: ClusterNode) -> None:
        self._groups = groups
        self._node = node
        self._unused: set[str] = set()  # names of groups that were deleted, and are this node's still

    async def begin(self) -> None:
        """Own the groups that are here and have no owner. Raises Unavailable."""
        light = self._groups.table.light_offsets.counts
        names = [*self._groups.names(), *light]
        for first in range(0, len(names), CLAIMED_AT_ONCE):
            await asyncio.gather(*[self._node.claim(GROUPS, name) for name in names[first : first + CLAIMED_AT_ONCE]])
        belonging, own = self._groups.belonging, self._node.name
        belonging.elsewhere = self._elsewhere
        belonging.is_owned = lambda group: self._node.owner(GROUPS, group) == own
        self._unused = set(self._node.owned(GROUPS, own)).difference(names)
        self._node.take_group = self._take

    async def run(self) -> None:
        """Forget what is other nodes', and let go of names that are in use no more, until cancelled."""
        await self.forget_others()
        while True:
            for name in sorted(self._unused):
                await self.release(name)
            await asyncio.sleep(RELEASE_INTERVAL_S)

    async def release(self, group: str) -> None:
        """Have a group that is not here any more be no node's, so that the metadata forgets it and any node may begin
        one of that name. When that cannot be done now, it is tried again. It happens under all turns of the group: who
        begins it anew meanwhile waits, then meets GroupUnowned, and makes it this node's first."""
        node = self._node
        self._unused.add(group)
        try:
            async with self._groups.handover.leaving(group) as moved:
                if not moved.events:
                    owner, revision = await node.owner_now(GROUPS, group)
                    if owner == node.name:
                        await node.disown(GROUPS, group, revision)
        except (MetadataError, StoreError, GroupError) as error:
            log.info("name of a deleted group is kept for now group=%s error=%s", group, error)
        else:
            self._unused.discard(group)

    async def forget_others(self) -> None:
        """Forget the groups that have gone to other nodes, or came half: a crash may have left some. What the store
        refuses now, the next start does."""
        for name in [*self._groups.names(), *self._groups.table.light_offsets.counts]:
            if self._groups.belonging.is_elsewhere(name) and not self._node.is_sharded(GROUPS, group_of(name)):
                log.info("group is another node's, forgotten here group=%s", name)
                try:
                    await self._groups.handover.forget(name)
                except StoreError as error:
                    log.warning("group of another node stays here, unused group=%s error=%s", name, error)

    async def give(self, group: str, to: str) -> None:
        """Move a group of this node to another one, with all that it is; it is there on return, durably, and who asks
        for it here is told so. Raises UnknownBroker, GroupElsewhere, and what writing, metadata and the other node
        raise: then it is still here."""
        await to_its_end(self._give(group, to))

    async def _give(self, group: str, to: str) -> None:
        node, handover = self._node, self._groups.handover
        peer = node.peer(to)
        self._groups.belonging.check(group)
        async with handover.leaving(group) as moved:
            owner, revision = await node.owner_now(GROUPS, group)
            self._groups.belonging.check(group)
            if owner is None:
                return
            try:
                is_gone = await peer.take_group(group, moved.events, size_bytes=moved.size_bytes, revision=revision)
            except AnswerLost as error:
                is_gone = not await node.own(GROUPS, group, revision, is_unknown=True)
                if not is_gone:
                    raise Overloaded(f"node {to} did not say whether it took group {group}; it has not") from error
            if not is_gone:
                raise Overloaded(f"node {to} did not take group {group}")
            node.note_owner(GROUPS, group, to, revision)
            await handover.gone(group)
        log.info("group moved group=%s to=%s bytes=%d", group, to, len(moved.events))

    async def _take(self, group: str, events: bytes, size_bytes: int, revision: int) -> bool:
        node = self._node
        if not node.has_store(node.name):
            raise BrokerLacks(f"node {node.name} has no store (--no-store), and takes no groups of other nodes")
        if node.members[node.name].draining:
            raise Overloaded(f"node {node.name} drains, and takes no groups")
        try:
            moved = Moved(group, size_bytes, events)
            return await self._groups.handover.come(moved, partial(node.own, GROUPS, group, revision))
        except (GroupError, MetadataError) as error:
            raise Overloaded(f"node {node.name} cannot take group {group}: {error}") from error

    def _elsewhere(self, group: str) -> GroupElsewhere | None:
        owner = self._node.owner(GROUPS, group)
        if owner is None or owner == self._node.name:
            return None
        member = self._node.members.get(owner)
        where = "" if member is None else f": connect to {member.url}"
        return GroupElsewhere(f"group {group} belongs to node {owner}{where}")


class OwnGroups:
    """`Groups`, which refuses what belongs to another node with GroupElsewhere. A method that may begin to use a group
    makes it this node's first when it has no owner. Requests that name their group in the path are then sent on
    (surfaces/http/forwarding.py)."""

    def __init__(
        self, groups: Coordinator, node: ClusterNode, release: Callable[[str], Coroutine[Any, Any, None]]
    ) -> None:
        self._groups = groups
        self._node = node
        self._release = release
        beginning, using = self._beginning, self._using

        # What a group comes into being by, or is first asked by.
        self.configure, self.follow = beginning(groups.configure), beginning(groups.follow)
        self.join, self.begin_round = beginning(groups.join), beginning(groups.begin_round)
        self.committed, self.start_offset = beginning(groups.committed), beginning(groups.start_offset)
        self.commit, self.reset = beginning(groups.commit), beginning(groups.reset)
        self.receive, self.put_document = beginning(groups.receive), beginning(groups.put_document)

        # What is asked about a group, or done to it, after that.
        self.counts, self.lag, self.lag_page = using(groups.counts), using(groups.lag), using(groups.lag_page)
        self.share_changed = using(groups.share_changed)
        self.release, self.leave, self.assign = using(groups.release), using(groups.leave), using(groups.assign)
        self.forget_offsets, self.redrive = using(groups.forget_offsets), using(groups.redrive)
        self.ack, self.ack_up_to, self.extend = using(groups.ack), using(groups.ack_up_to), using(groups.extend)
        self.nack, self.give_back, self.reject = using(groups.nack), using(groups.give_back), using(groups.reject)
        self.settle_letters = using(groups.settle_letters)

        # What is only looked at, as it is here.
        self.names, self.describe = groups.names, groups.describe
        self.config, self.members, self.view = groups.config, groups.members, groups.view
        self.leases, self.documents, self.plan_state = groups.leases, groups.documents, groups.plan_state
        self.settled_letters = groups.settled_letters
        offsets = groups.light_offsets
        self.light_offsets = OwnLightOffsets(
            offsets, groups.belonging, commit=beginning(offsets.commit), forget=using(offsets.forget)
        )

    async def delete(self, group: str) -> None:
        """See `Groups.delete`. Its name is no node's afterwards."""
        is_sharded = self._node.is_sharded(GROUPS, group)
        await self._using(self._groups.delete)(group)
        if not is_sharded:
            await to_its_end(self._release(group))

    def heartbeat(self, group: str, member: MemberKey) -> Share:
        """See `Groups.heartbeat`."""
        self._groups.belonging.check(group)
        return self._groups.heartbeat(group, member)

    def begin_receive(self, group: str, request: Receive, told: Callable[[Received | None], None]) -> bool:
        """See `Groups.begin_receive`. Of a group without an owner it begins nothing: `receive` makes it this node's."""
        if self._node.owner(GROUPS, group) is None:
            return False
        self._groups.belonging.check(group)
        return self._groups.begin_receive(group, request, told)

    def _beginning(self, method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        checked = self._using(method)

        async def begun(*arguments: P.args, **named: P.kwargs) -> T:
            group = _group_in(arguments, named)
            while True:
                if self._node.owner(GROUPS, group) is None:
                    await self._node.claim(GROUPS, group)
                with suppress(GroupUnowned):  # it was deleted, and let go of, meanwhile
                    return await checked(*arguments, **named)

        return begun

    def _using(self, method: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        check = self._groups.belonging.check

        async def checked(*arguments: P.args, **named: P.kwargs) -> T:
            group = _group_in(arguments, named)
            check(group)
            try:
                return await method(*arguments, **named)
            except GroupError:
                check(group)  # it may have gone meanwhile: then what was found is not so
                raise

        return checked


class OwnLightOffsets:
    """`LightOffsets` of groups as `OwnGroups` has them: how far a group is, is where the group is."""

    def __init__(
        self,
        offsets: LightOffsets,
        belonging: Belonging,
        *,
        commit: Callable[[str, str, str, Mapping[int, int]], Coroutine[Any, Any, None]],
        forget: Callable[[str, str, str], Coroutine[Any, Any, None]],
    ) -> None:
        self._committed = offsets.committed
        self._belonging = belonging
        self._commit = commit
        self._forget = forget
        self.count, self.groups, self.places = offsets.count, offsets.groups, offsets.places  # as they are here

    def committed(self, group: str, topic: str, partition: int, name: str) -> int | None:
        """See `LightOffsets.committed`."""
        self._belonging.check(group)
        return self._committed(group, topic, partition, name)

    async def commit(self, group: str, topic: str, name: str, offsets: Mapping[int, int]) -> None:
        """See `LightOffsets.commit`."""
        await self._commit(group, topic, name, offsets)

    async def forget(self, group: str, topic: str, name: str) -> None:
        """See `LightOffsets.forget`."""
        await self._forget(group, topic, name)


def _group_in(arguments: Sequence[object], named: Mapping[str, object]) -> str:
    group = arguments[0] if arguments else named["group"]
    assert isinstance(group, str)
    return group
