"""What callers are shown, independent of any protocol: the part that all surfaces have in common.

A surface adds what is its own: REST Proxy v2 and v3 have further fields in a receipt. `rest_v2/plain.py` and
`rendered_columns` in `rest_v2/produce.py` write the bytes of plain receipts by hand, since a dictionary a record would
be a third of their time; tests hold them against what is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import orjson

from gateway.api.producer import BatchReceipt, Receipt
from gateway.codec.message_ids import MessageId
from gateway.codec.records import render_parts
from gateway.groups.protocol import Delivered, Settled


def receipt_as_json(receipt: Receipt, topic_id: int | None = None) -> dict[str, object]:
    """What became of one record that was sent; with its message id where the topic's id is given."""
    item: dict[str, object] = {"partition": receipt.partition, "offset": receipt.offset}
    if topic_id is not None and receipt.offset is not None:
        item["message_id"] = MessageId(topic_id, receipt.partition, receipt.offset).text
    add_fate(item, receipt)
    return item


def add_fate(item: dict[str, object], receipt: Receipt) -> None:
    """Add what only few records have: a schedule, or an earlier send that stored them."""
    if receipt.schedule_id is not None:
        item["schedule_id"] = receipt.schedule_id
        item["deliver_at"] = receipt.deliver_at_ms
    if receipt.duplicate:
        item["duplicate"] = True


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
        **queue_as_json(message),
        "delivery_attempt": message.attempt,
        "receipt": message.receipt,
        "visible_until": message.until_ms,
    }
    if message.message_group is not None:
        item["message_group"] = message.message_group
    return item


def queue_as_json(message: Delivered) -> dict[str, object]:
    """The light queue that a record was received from; nothing where there was none."""
    return {} if message.queue is None else {"queue": message.queue, "queue_offset": message.queue_offset}


def written_in_runs(
    messages: Sequence[Delivered],
    form_of: Callable[[Delivered], bytes | None],
    fill: Callable[[bytes, Delivered], bytes],
    write: Callable[[Delivered], bytes],
) -> list[bytes]:
    """Each as JSON text. What plain records have in common is written once (`form_of`) and filled in for each (`fill`):
    to make an object of each would be a third of what handing records out costs. Plain is what is known to be JSON and
    has neither headers nor a raw key, and is of no light queue; all else, and all where there is no form, goes through
    `write`."""
    written: list[bytes] = []
    common: object = None
    form: bytes | None = None
    for message in messages:
        is_plain = message.json_value and not message.headers and message.queue is None
        if not is_plain or (message.raw_key and message.key is not None):
            written.append(write(message))
            continue
        own = message.topic, message.partition, message.store_time_ms, message.attempt, message.until_ms
        if own != common:
            common, form = own, form_of(message)
        written.append(write(message) if form is None else fill(form, message))
    return written


def delivered_as_list(messages: Sequence[Delivered], topic_id_of: Callable[[str], int | None]) -> list[bytes]:
    """Each as `delivered_as_json` has it, as JSON text."""

    def form_of(one: Delivered) -> bytes | None:
        if (topic_id := topic_id_of(one.topic)) is None:
            return None
        topic = one.topic.replace("%", "%%")  # a name needs no escapes in JSON
        return (
            f'{{"topic":"{topic}","partition":{one.partition},"offset":%d,"message_id":"{topic_id}-{one.partition}-%d",'
            f'"key":%b,"value":%b,"timestamp":%d,"store_timestamp":{one.store_time_ms},'
            f'"delivery_attempt":{one.attempt},"receipt":"%b","visible_until":{one.until_ms}}}'
        ).encode()

    def fill(form: bytes, one: Delivered) -> bytes:
        key, value, offset = one.key, one.value, one.offset
        key, value = b"null" if key is None else key, b"null" if value is None else value
        return form % (offset, offset, key, value, one.timestamp_ms, one.receipt.encode())

    return written_in_runs(
        messages, form_of, fill, lambda one: orjson.dumps(delivered_as_json(one, topic_id_of(one.topic)))
    )


def settled_as_list(results: Sequence[Settled]) -> bytes:
    """What became of receipts, as JSON text. Those that were accepted are of our making and need no escapes."""
    if not all(result.ok and result.new_receipt is None for result in results):
        return orjson.dumps([settled_as_json(result) for result in results])
    receipts = '","ok":true},{"receipt":"'.join([result.receipt for result in results])
    return f'[{{"receipt":"{receipts}","ok":true}}]'.encode() if receipts else b"[]"


def settled_as_json(settled: Settled) -> dict[str, object]:
    """What became of one receipt that a consumer settled."""
    item: dict[str, object] = {"receipt": settled.receipt, "ok": settled.ok}
    if settled.new_receipt is not None:
        item["new_receipt"] = settled.new_receipt
    if not settled.ok:
        item["error_code"] = settled.error_code
        item["error"] = settled.error
    return item
