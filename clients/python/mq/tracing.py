"""OpenTelemetry as middleware: the trace of a sender goes on in the worker. Needs `opentelemetry-api`
(`pip install mq-py[otel]`).

    from mq import tracing
    mq.connect(url, middleware=[tracing.send])
    @mq.worker("mails", group="mailers", middleware=[tracing.handle])

The context travels in the record's headers `traceparent` and `tracestate` (W3C Trace Context); a header that the record
has already is left alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from opentelemetry import context, propagate, trace

from mq.message import Message, Receipt
from mq.middleware import Outgoing

_SYSTEM = {"messaging.system": "mq"}


async def send(outgoing: Outgoing, following: Callable[[Outgoing], Awaitable[list[Receipt]]]) -> list[Receipt]:
    """A span for the send; its context goes along in the headers."""
    tracer = trace.get_tracer("mq")
    attributes = {**_SYSTEM, "messaging.destination.name": outgoing.topic}
    with tracer.start_as_current_span(f"send {outgoing.topic}", kind=trace.SpanKind.PRODUCER, attributes=attributes):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        for record in outgoing.records:
            record.headers = {**carrier, **(record.headers or {})}
        return await following(outgoing)


async def handle(message: Message[Any], following: Callable[[Message[Any]], Awaitable[object]]) -> object:
    """A span for the handler, as a child of the sender's."""
    carrier = {name: value for name, value in message.headers.items() if isinstance(value, str)}
    token = context.attach(propagate.extract(carrier))
    try:
        tracer = trace.get_tracer("mq")
        attributes: dict[str, str | int] = {
            **_SYSTEM, "messaging.destination.name": message.topic, "messaging.message.id": message.id,
            "messaging.mq.attempt": message.attempt,
        }  # fmt: skip
        with tracer.start_as_current_span(
            f"process {message.topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes
        ):
            return await following(message)
    finally:
        context.detach(token)
