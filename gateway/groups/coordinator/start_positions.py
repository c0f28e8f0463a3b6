"""Where a group begins in a topic it has never been in: settled once, durably, for all partitions of the topic.

A consumer says where to start: first, last, a time. That is for the records that were there when the group came to the
topic. Whatever is stored from then on belongs to the group (C5), whichever members come and go meanwhile, so:

    the first start in a topic      fixes the position in every partition of it, in one entry
    a partition that came later     first record: the group has positions in others of the topic
    a topic that came later than    first record: the group was waiting for it, or had the one of that name before.
    the wish for it                 Wishes are remembered in small documents, whose content is the lowest topic id that
                                    a later topic can have; ids only grow:    names/<name>    follows/<pattern>

Kafka's `auto.offset.reset=latest` asks anew whenever nothing is committed, and so skips what was stored between the
first assignment and the first commit, and the first records of topics and partitions that are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.groups.machines.errors import GroupFull
from gateway.groups.machines.events import DocumentPut
from gateway.groups.machines.progress import Absent, PartitionKey, Start
from gateway.groups.machines.subscription import Subscription
from gateway.groups.machines.table import GroupTable
from gateway.groups.protocol import StartSpec
from gateway.routing.base import TopicView

WISHES_MAX = 10_000
"""Names and patterns that one group remembers."""

_NAMES = "names/"
_FOLLOWS = "follows/"


def decide_follow(
    group: str, documents: Mapping[str, bytes], wish: Subscription, topics: Sequence[TopicView]
) -> list[DocumentPut]:
    """The group wants these topics from now on: what is to be remembered of that. Raises GroupFull."""
    keys = [_NAMES + name for name in sorted(wish.topics)]
    if wish.pattern is not None:
        keys.append(_FOLLOWS + wish.pattern)
    news = [key for key in keys if key not in documents]
    if not news:
        return []
    if sum(key.startswith((_NAMES, _FOLLOWS)) for key in documents) + len(news) > WISHES_MAX:
        raise GroupFull(f"group={group} has asked for {WISHES_MAX} topics and patterns, which is its limit")
    next_id = max((topic.topic_id for topic in topics), default=0) + 1
    return [DocumentPut(group, key, str(next_id).encode()) for key in news]


def start_in(table: GroupTable, group: str, topic: TopicView, start: StartSpec) -> StartSpec:
    """Where the group begins in the partitions of a topic in which it has no position yet, when it is told `start`."""
    if start is Start.FIRST or _has_offset(table, group, topic) or _was_wanted_before(table, group, topic):
        return Start.FIRST
    return start


def _has_offset(table: GroupTable, group: str, topic: TopicView) -> bool:
    return topic.topic_id in table.topic_ids(group)


def _was_wanted_before(table: GroupTable, group: str, topic: TopicView) -> bool:
    """Whether a member of the group asked for the topic when it was not there yet."""
    if group not in table:
        return False
    documents = table.get(group).documents
    wishes = [documents[key] for key in (_NAMES + topic.name,) if key in documents]
    wishes += [
        content
        for key, content in documents.items()
        if key.startswith(_FOLLOWS) and Subscription(pattern=key.removeprefix(_FOLLOWS)).matches(topic.name)
    ]
    return any(topic.topic_id >= int(first_id) for first_id in wishes)


def partitions_without_offset(table: GroupTable, group: str, topic: TopicView) -> list[PartitionKey]:
    """Partitions of a topic in which the group has no position."""
    keys = (PartitionKey(topic.topic_id, number) for number in range(topic.partitions))
    return [key for key in keys if isinstance(table.stored(group, key), Absent)]
