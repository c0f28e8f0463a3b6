"""What the selected topics hold right now: the part of planning that asks the server."""

from __future__ import annotations

import re

from pyspark_mq.client import Client
from pyspark_mq.errors import MqError, NotFound
from pyspark_mq.offsets import Assign, OffsetForTime, Selection, Subscribe, SubscribePattern, Topics, TopicState


class Catalog:
    """Looks up the topics of a selection. Errors are those of the client."""

    def __init__(self, client: Client, selection: Selection) -> None:
        self._client = client
        self._selection = selection

    def existing(self) -> dict[str, TopicState]:
        """The state of every selected topic and partition that exists, by topic name, sorted."""
        match self._selection:
            case Subscribe(topics):
                names = list(topics)
            case SubscribePattern(regex):
                names = [name for name in self._client.topic_names() if re.fullmatch(regex, name)]
            case Assign(partitions):
                names = list(partitions)
        found = {}
        for name in sorted(names):
            try:
                found[name] = self._client.topic(name)
            except NotFound:  # deleted in this moment, or never there: the caller knows which is an error
                continue
        if isinstance(self._selection, Assign):
            return {name: _only(state, self._selection.partitions[name]) for name, state in found.items()}
        return found

    def all(self) -> Topics:
        """As `existing`, but a topic or partition that was named and does not exist is an error.

        A pattern that matches nothing is none: topics may come later.
        """
        return self.complete(self.existing())

    def complete(self, found: Topics) -> Topics:
        """What `existing` found, unless something that was named is missing in it: then an MqError."""
        match self._selection:
            case Subscribe(topics):
                missing = [name for name in topics if name not in found]
            case SubscribePattern():
                missing = []
            case Assign(partitions):
                missing = [
                    f"{name}/{partition}"
                    for name, wanted in partitions.items()
                    for partition in wanted
                    if name not in found or partition not in found[name].partitions
                ]
        if missing:
            raise MqError(
                f"the server has no {', '.join(missing)}; its topics are "
                f"{', '.join(sorted(self._client.topic_names())) or '(none)'}"
            )
        return found

    def times(self) -> OffsetForTime:
        """A search by time that asks the server once for all partitions of a topic."""
        answers: dict[tuple[str, int], dict[int, int | None]] = {}

        def offset_for_time(topic: str, partition: int, time_ms: int) -> int | None:
            if (topic, time_ms) not in answers:
                answers[topic, time_ms] = self._client.offsets_for_time(topic, time_ms)
            return answers[topic, time_ms].get(partition)

        return offset_for_time


def _only(state: TopicState, partitions: tuple[int, ...]) -> TopicState:
    return TopicState(state.epoch, {p: state.partitions[p] for p in partitions if p in state.partitions})
