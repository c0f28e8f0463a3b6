"""What callers are shown, independent of any protocol: the part that all surfaces have in common.

A surface adds what is its own: REST Proxy v2 and v3 have further fields in a receipt. `rest_v2/plain.py` and
`rendered_columns` in `rest_v2/produce.py` write the bytes of plain receipts by hand, since a dictionary a record would
be a third of their time; tests hold them against what is made here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import orjson

from gateway.api.producer import BatchReceipt, Receipt
from gateway.codec.message_ids import MessageId
from gateway.codec.records import are_shown_plainly, render_parts
from gateway.codec.texts import as_json_strings, filled
from gateway.groups.machines.receipts import RUN_RECORDS_MAX, RunReceipts, joined
from gateway.groups.protocol import Accepted, Delivered, PlainRecords, RecordShown, Run, Settled

_HEADERS_OF = attrgetter("headers")
_KEY_OF = attrgetter("key")
_VALUE_OF = attrgetter("value")
_TIMESTAMP_OF = attrgetter("timestamp")


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


Template = tuple[bytes, Sequence[str]]
"""The text of a record of a run, with `%d` and `%b` for what differs from record to record, and what that is, in order:
`offset`, `key`, `value`, `timestamp`, and `receipt`. What `Forms` has as a constant may be among them."""


class Forms(NamedTuple):
    """How the fields of a run's records stand in a template: what all have in common is written once."""

    key: str
    timestamp: str
    receipt: str


_INDEXES = tuple([b"%d" % index for index in range(RUN_RECORDS_MAX)])


def filled_in(template_of: Callable[[Run, Forms], Template], run: Run, separator: bytes) -> bytes | None:
    """The texts of a run's records as one, with what is between two of them; None where a look at each of them is
    needed. What plain records have in common is written once: to make an object of each would be a third of what
    handing records out costs. Plain are those of which key and value are known to be JSON, or are so at one look at all
    of them, without headers, and of no light queue."""
    records, receipts = run.records, run.receipts
    if run.queue is not None or (found := _columns_of(records)) is None:
        return None
    keys, values, timestamps = found
    if not are_shown_plainly(keys or (), values, json_values=run.json_values, raw_keys=run.raw_keys):
        return None
    count = len(values)
    columns: dict[str, Sequence[object]] = {
        "offset": range(run.offset, run.offset + count),
        "value": [b"null" if value is None else value for value in values] if None in values else values,
    }
    key, timestamp, receipt = "null", "%d", "%b"
    if keys is not None:
        key, columns["key"] = _keys_shown(keys, raw_keys=run.raw_keys)
    if isinstance(timestamps, int):
        timestamp = str(timestamps)
    else:
        columns["timestamp"] = timestamps
    if isinstance(receipts, RunReceipts):
        receipt = f"{receipts.signed}.%b"
        columns["receipt"] = _INDEXES[receipts.first : receipts.first + count]
    else:
        columns["receipt"] = [one.encode() for one in receipts]
    text, names = template_of(run, Forms(key, timestamp, receipt))
    return filled(text, [columns[name] for name in names if name in columns], separator)


def _columns_of(
    records: Sequence[RecordShown],
) -> tuple[Sequence[bytes | None] | None, Sequence[bytes | None], int | Sequence[int]] | None:
    """Keys (None: there are none), values and timestamps (a number: of all); None where one has headers."""
    if isinstance(records, PlainRecords):
        return records.keys, records.values, records.timestamp
    if any(map(_HEADERS_OF, records)):
        return None
    return list(map(_KEY_OF, records)), list(map(_VALUE_OF, records)), list(map(_TIMESTAMP_OF, records))


def _keys_shown(keys: Sequence[bytes | None], *, raw_keys: bool) -> tuple[str, Sequence[bytes | None]]:
    """How they stand in a template, and what is put there."""
    shown, quote = as_json_strings(keys) if raw_keys else (keys, b"")
    if None not in shown:
        return ('"%b"' if quote else "%b"), shown
    return "%b", [b"null" if key is None else b"%b%b%b" % (quote, key, quote) for key in shown]


def delivered_as_list(runs: Sequence[Run], topic_id_of: Callable[[str], int | None]) -> bytes:
    """Each record as `delivered_as_json` has it, as JSON texts with commas between them."""
    texts: list[bytes] = []
    for run in runs:
        topic_id = topic_id_of(run.topic)
        text = None if topic_id is None else filled_in(partial(_template_of, topic_id), run, b",")
        texts += [orjson.dumps(delivered_as_json(one, topic_id)) for one in run.messages()] if text is None else [text]
    return b",".join(texts)


def _template_of(topic_id: int, run: Run, forms: Forms) -> Template:
    topic = run.topic.replace("%", "%%")  # a name needs no escapes in JSON
    text = (
        f'{{"topic":"{topic}","partition":{run.partition},"offset":%d,"message_id":"{topic_id}-{run.partition}-%d",'
        f'"key":{forms.key},"value":%b,"timestamp":{forms.timestamp},"store_timestamp":{run.store_time_ms},'
        f'"delivery_attempt":{run.attempt},"receipt":"{forms.receipt}","visible_until":{run.until_ms}}}'
    )
    return text.encode(), ("offset", "offset", "key", "value", "timestamp", "receipt")


def settled_as_list(results: Sequence[Settled]) -> bytes:
    """What became of receipts, as JSON text. Those that were accepted are of our making and need no escapes."""
    if not isinstance(results, Accepted):
        return orjson.dumps([settled_as_json(result) for result in results])
    receipts = joined(results.receipts, '","ok":true},{"receipt":"')
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
