"""Message ids: `16-2-105` is the record at offset 105 of partition 2 of the topic with epoch 16.

The id says where the record is, so a lookup needs no index, and a client that knows a record's epoch, partition and
offset can write its id. A topic's epoch (its topic id) is never used again, so an id never comes to mean another
record: of a topic that was deleted, or a record that expired, it is unknown for good.

A delayed record has a schedule id until it is delivered; then it has an offset, and with it its message id.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_ID = re.compile(r"(0|[1-9][0-9]{0,9})-(0|[1-9][0-9]{0,8})-(0|[1-9][0-9]{0,17})", re.ASCII)


class MessageId(NamedTuple):
    """Where one record is, for ever."""

    topic_id: int
    partition: int
    offset: int

    @property
    def text(self) -> str:
        """The id as clients know it."""
        return f"{self.topic_id}-{self.partition}-{self.offset}"


def message_id_prefix(topic_id: int, partition: int) -> str:
    """What all ids of one partition begin with; the offset follows."""
    return f"{topic_id}-{partition}-"


def parse_message_id(text: str) -> MessageId:
    """Read an id back. Raises ValueError for what is not exactly as `MessageId.text` writes it."""
    match = _ID.fullmatch(text)
    if match is None:
        raise ValueError("not a message id")
    return MessageId(int(match[1]), int(match[2]), int(match[3]))
