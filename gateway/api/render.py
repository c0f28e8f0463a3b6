"""What callers are shown, in words of no protocol: the part that all surfaces have in common.

A surface adds what is its own: REST Proxy v2 and v3 have further fields in a receipt. `rest_v2/fast_path.py` and
`rendered_columns` in `rest_v2/produce.py` write the bytes of plain receipts by hand, since a dictionary a record would
be a third of their time; tests hold them against what is made here.
"""

from __future__ import annotations

from gateway.api.producer import BatchReceipt, Receipt
from gateway.codec.message_ids import MessageId
from gateway.codec.records import render_parts
from gateway.groups.protocol import Delivered, Settled


def receipt_as_json(receipt: Receipt, topic_id: int | None = None) -> dict[str, object]:
    """What became of one record that was sent; with its message id where the topic's id is given."""
    item: dict[str, object] = {"partition": receipt.partition, "offset": receipt.offset}
    if topic_id is not None and receipt.offset is not None:
        item["message_id"] = MessageId(topic_id, receipt.partition, receipt.offset).text
    if receipt.schedule_id is not None or receipt.duplicate:
        item |= fate_as_json(receipt)
    return item


def fate_as_json(receipt: Receipt) -> dict[str, object]:
    """Of a receipt, what only few records have: a schedule, or an earlier send that stored them."""
    item: dict[str, object] = {}
    if receipt.schedule_id is not None:
        item["schedule_id"] = receipt.schedule_id
        item["deliver_at"] = receipt.deliver_at_ms
    if receipt.duplicate:
        item["duplicate"] = True
    return item


def batch_receipt_as_json(receipt: BatchReceipt) -> dict[str, object]:
    """Where one raw batch went."""
    item: dict[str, object] = {
        "partition": receipt.partition,
        "offset": receipt.offset,
        "record_count": receipt.record_count,
    }
    if receipt.duplicate:
        item["duplicate"] = True
    return item


def delivered_as_json(message: Delivered, topic_id: int | None) -> dict[str, object]:
    """A record on lease, in the native form."""
    item: dict[str, object] = {
        "topic": message.topic,
        "partition": message.partition,
        "offset": message.offset,
        "message_id": None if topic_id is None else MessageId(topic_id, message.partition, message.offset).text,
        **render_parts(
            message.key, message.value, message.headers, None, json_values=message.json_value, raw_keys=message.raw_key
        ),
        "timestamp": message.timestamp_ms,
        "store_timestamp": message.store_time_ms,
        "delivery_attempt": message.attempt,
        "receipt": message.receipt,
        "visible_until": message.until_ms,
    }
    if message.message_group is not None:
        item["message_group"] = message.message_group
    return item


def settled_as_json(settled: Settled) -> dict[str, object]:
    """What became of one receipt that a consumer settled."""
    item: dict[str, object] = {"receipt": settled.receipt, "ok": settled.ok}
    if settled.new_receipt is not None:
        item["new_receipt"] = settled.new_receipt
    if not settled.ok:
        item["error_code"] = settled.error_code
        item["error"] = settled.error
    return item
