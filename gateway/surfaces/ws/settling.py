"""What settles messages: ack, nack, reject and extend, and what each receipt or partition is answered."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from gateway.api.render import settled_as_list
from gateway.errors import RequestError, invalid
from gateway.groups.protocol import Settled
from gateway.surfaces.ws.commands import Ack, Settle, UpTo
from gateway.surfaces.ws.light import LightStream
from gateway.surfaces.ws.queue import Queue
from gateway.surfaces.ws.session import Subscription
from gateway.surfaces.ws.stream import Stream


def check_settles(command: Settle, subscription: Subscription) -> Stream | LightStream | Queue:
    """The subscription, if this is a way to settle its messages. Raises RequestError."""
    if isinstance(subscription, Queue):
        return subscription
    if not isinstance(subscription, Stream | LightStream):
        raise invalid("op: a reader has nothing to settle")
    if not (isinstance(command, Ack) and command.up_to):
        raise invalid("op: stream mode commits offsets; ack with up_to or cursor")
    return subscription


async def settle(command: Settle, subscription: Stream | LightStream | Queue) -> dict[str, object]:
    """Do it; the fields of the answer. Acks of a queue by receipt are begun by who takes the command. Raises
    RequestError, GroupError, StoreError."""
    if isinstance(subscription, Queue) and not isinstance(command, Ack):
        return answered(await subscription.settle(command))
    return {"results": await _results(command, subscription)}


def answered(results: Sequence[Settled]) -> dict[str, object]:
    """The fields of the answer that tell of receipts."""
    return {"results": orjson.Fragment(settled_as_list(results))}


async def _results(command: Settle, subscription: Stream | LightStream | Queue) -> list[dict[str, object]]:
    """One a partition, in the order asked."""
    assert isinstance(command, Ack)
    assert command.up_to
    if isinstance(subscription, Stream | LightStream):
        errors = await subscription.ack(command.up_to)
        return [_up_to_result(up_to, error) for up_to, error in zip(command.up_to, errors, strict=True)]
    counts = await subscription.ack_up_to(command.up_to)
    return [{**_up_to_result(up_to, None), "count": count} for up_to, count in zip(command.up_to, counts, strict=True)]


def _up_to_result(up_to: UpTo, error: RequestError | None) -> dict[str, object]:
    shown: dict[str, object] = {"topic": up_to.topic, "partition": up_to.partition, "ok": error is None}
    if error is not None:
        shown["error_code"] = error.error_code
        shown["error"] = error.message
    return shown
