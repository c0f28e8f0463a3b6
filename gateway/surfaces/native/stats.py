"""What runs through the server: one look, or one a second for as long as a client watches."""

from __future__ import annotations

import orjson
from aiohttp import hdrs, web
from msgspec import convert, to_builtins

from gateway.api.shapes import server
from gateway.api.shapes.queries import NoQuery, PointsQuery
from gateway.auth.access import Permission
from gateway.errors import TOO_MANY, RequestError
from gateway.surfaces.http.answers import json_answer, packed
from gateway.surfaces.http.caller import access_of
from gateway.surfaces.http.context import Gateway
from gateway.surfaces.http.reading import read_query
from gateway.surfaces.http.rights import while_allowed
from gateway.surfaces.http.streaming import StreamedAnswer

EVENTS_TYPE = "text/event-stream"


async def stats(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """What runs through the server now and ran lately, how much waits, and what is wrong.

    900 points a second apart, or 1,440 a minute apart. Rates are of all topics and groups together.
    """
    points = read_query(PointsQuery, request, gateway).points
    now, history = _now(gateway), gateway.figures.history(points)
    body = server.Stats(now.time_ms, now.now, now.alarms, history.step_ms, history.end_ms, dict(history.series))
    return await packed(request, json_answer(request, body))


async def stats_stream(gateway: Gateway, request: web.Request, _: bytes) -> web.StreamResponse:
    """The same without the past, once a second, as Server-Sent Events named `stats`.

    `goaway` comes before the server stops.
    """
    read_query(NoQuery, request, gateway)
    if gateway.stats.stream_count >= gateway.limits.streams_max:
        raise RequestError(TOO_MANY, "Too many streams are open.", retriable=True, retry_after_ms=1000)
    answer = StreamedAnswer(
        gateway, request, content_type=EVENTS_TYPE, headers={hdrs.CACHE_CONTROL: "no-store", "X-Accel-Buffering": "no"}
    )
    gateway.stats.stream_count += 1
    try:
        while not gateway.draining.is_set():
            access_of(request).check(Permission.OPERATE)
            await answer.write(_event("stats", orjson.dumps(_now(gateway), default=to_builtins)))
            async with while_allowed(gateway, request):
                await gateway.figures.next_tick()
        await answer.write(_event("goaway", b'{"reason":"shutdown"}'))
    except ConnectionError:
        return answer.gone()
    except RequestError as error:
        if not answer.has_begun:
            raise
        await answer.write(_event("error", orjson.dumps({"error_code": error.error_code, "message": error.message})))
    finally:
        gateway.stats.stream_count -= 1
    return await answer.end()


def _now(gateway: Gateway) -> server.StatsNow:
    figures = gateway.figures
    alarms = [
        server.Alarm(trouble.code, trouble.severity, since_ms, trouble.message, trouble.help, trouble.group)
        for trouble, since_ms in figures.alarms()
    ]
    return server.StatsNow(figures.time_ms, convert(figures.now(), server.Figures), alarms)


def _event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)
