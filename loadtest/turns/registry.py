"""A schema registry that knows a few schemas, and values by them that are made to harm who reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from gateway.codec.schema_parts import framed

TEXT, ANYTHING, NULLS, CHAIN = range(1, 5)
_SCHEMAS = {
    TEXT: {"schema": '"string"'},
    ANYTHING: {"schema": "true", "schemaType": "JSON"},
    NULLS: {"schema": '{"type": "array", "items": "null"}'},
    CHAIN: {"schema": '{"type": "record", "name": "N", "fields": [{"name": "n", "type": ["null", "N"]}]}'},
}

HARMFUL: Mapping[str, Callable[[], Sequence[bytes]]] = {
    "small-texts": lambda: [framed(TEXT, b"\x02x")] * 5_000,
    "wide-nulls": lambda: [framed(NULLS, b"\x80\x89\x7a\x00")] * 50,  # a million of them each
    "deep-chain": lambda: [framed(CHAIN, b"\x02" * 200 + b"\x00")] * 500,
    "too-deep": lambda: [framed(CHAIN, b"\x02" * 500_000 + b"\x00"), framed(TEXT, b"\x02x")],
    "unknown-ids": lambda: [framed(number, b"") for number in range(1_000, 1_500)],
}
"""Records of topics, by their names."""


@asynccontextmanager
async def answering() -> AsyncIterator[str]:
    """The URL of a registry that has these schemas."""

    async def by_id(request: web.Request) -> web.Response:
        schema = _SCHEMAS.get(int(request.match_info["id"]))
        if schema is None:
            return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)
        return web.json_response(schema)

    application = web.Application()
    application.router.add_get("/schemas/ids/{id}", by_id)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
