"""Records as callers are shown them, in words of no protocol."""

from __future__ import annotations

from gateway.codec.message_ids import MessageId
from gateway.codec.records import render_parts
from gateway.groups.protocol import Delivered


def delivered_as_json(message: Delivered, topic_id: int | None) -> dict[str, object]:
    """A record on lease, in the native form."""
    item: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "message_id": None if topic_id is None else MessageId(topic_id, message.partition, message.offset).text,
        **render_parts(message.key, message.value, message.headers, None, json_values=message.json_value),
        "timestamp": message.timestamp_ms,
        "store_timestamp": message.store_time_ms,
        "delivery_attempt": message.attempt,
        "receipt": message.receipt,
        "visible_until": message.until_ms,
    }
    if message.message_group is not None:
        item["message_group"] = message.message_group
    return item
