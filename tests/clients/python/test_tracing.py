"""mq.tracing: the trace of a sender goes on in the worker."""

from __future__ import annotations

import asyncio

import mq
from mq import tracing
from mq.testing import Fake
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

TRACE = 0x0AF7651916CD43DD8448EB211C80319C


async def test_the_trace_goes_along_and_a_header_of_the_record_is_left_alone() -> None:
    seen: list[int] = []

    @mq.worker("mails", group="g", middleware=[tracing.handle])
    async def send_mail(message: mq.Message[int]) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    async with Fake("mails", middleware=(tracing.send,)) as client:
        span = NonRecordingSpan(SpanContext(TRACE, 0xB7AD6B7169203331, is_remote=False, trace_flags=TraceFlags(1)))
        with trace.use_span(span):
            send = client.send("mails", 1, headers={"own": "x"})
        await send
        (stored,) = client.stored("mails")
        assert stored.headers == {"own": "x", "traceparent": f"00-{TRACE:032x}-b7ad6b7169203331-01"}
        run = asyncio.ensure_future(send_mail.run(client))
        await client.settle()
        assert seen == [TRACE]
        assert not trace.get_current_span().get_span_context().is_valid
        send_mail.stop()
        await client.settle()
        await run
        await client.send("mails", 2, headers={"traceparent": "mine"})
        assert client.stored("mails")[1].headers == {"traceparent": "mine"}
