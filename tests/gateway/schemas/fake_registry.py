"""A schema registry in memory, over HTTP: what a test wants it to have, and to do wrong. The real one is Apicurio's
(tests/e2e/test_schema_registry.py)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import orjson
from aiohttp import web
from aiohttp.test_utils import TestServer

AVRO = orjson.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "org.example",
        "fields": [{"name": "sku", "type": "int"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
).decode()
JSON_SCHEMA = orjson.dumps(
    {"title": "Order", "type": "object", "properties": {"sku": {"type": "integer"}}, "required": ["sku"]}
).decode()
PROTO = 'syntax = "proto3"; package org.example; message Order { int32 sku = 1; string order_note = 2; }'


class FakeRegistry:
    """Schemas by id and by subject. `delay_s`, `status` and `body` are what it does instead of its work."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.delay_s = 0.0
        self.status = 0
        self.body: bytes = b""
        self.url = ""

    def add(self, text: str, kind: str = "AVRO", subject: str | None = None, **more: Any) -> int:
        """Have a schema; its id."""
        schema = {"schema": text, "schemaType": kind, **more}
        found = next((number for number, one in self.schemas.items() if one == schema), None)
        number = found or len(self.schemas) + 1
        self.schemas[number] = schema
        if subject is not None and number not in (versions := self.subjects.setdefault(subject, [])):
            versions.append(number)
        return number

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(f"{request.method} {request.raw_path}")
        self.authorizations.append(request.headers.get("Authorization"))
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self.status:
            return web.Response(status=self.status, body=self.body)
        match [unquote(one) for one in request.raw_path.partition("?")[0].strip("/").split("/")]:
            case ["schemas", "ids", number]:
                schema = self.schemas.get(int(number))
                return _refused(404, 40403, "Schema not found") if schema is None else _json(_without_avro(schema))
            case ["subjects", subject, "versions", version] if request.method == "GET":
                versions = self.subjects.get(subject, [])
                if not versions or (version != "latest" and int(version) > len(versions)):
                    return _refused(404, 40401, "Subject not found")
                return _json(self._version(subject, len(versions) if version == "latest" else int(version)))
            case ["subjects", subject]:
                wanted = _sent(await request.json())
                for index, number in enumerate(self.subjects.get(subject, []), 1):
                    if self.schemas[number] == wanted:
                        return _json(self._version(subject, index))
                return _refused(404, 40403, "Schema not found")
            case ["subjects", subject, "versions"]:
                sent = _sent(await request.json())
                if sent["schemaType"] != "PROTOBUF":
                    try:
                        orjson.loads(sent["schema"])
                    except orjson.JSONDecodeError:
                        return _refused(422, 42201, "Invalid schema")
                if self.subjects.get(subject) and "incompatible" in sent["schema"]:
                    return _refused(409, 409, "Schema being registered is incompatible")
                more = {name: one for name, one in sent.items() if name == "references"}
                return _json({"id": self.add(sent["schema"], sent["schemaType"], subject, **more)})
        return web.Response(status=404)

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        number = self.subjects[subject][version - 1]
        return {"subject": subject, "version": version, "id": number, **_without_avro(self.schemas[number])}


def _sent(body: dict[str, Any]) -> dict[str, Any]:
    known = {name: body[name] for name in ("schema", "schemaType", "references") if body.get(name)}
    return {"schemaType": "AVRO", **known}


def _without_avro(schema: dict[str, Any]) -> dict[str, Any]:
    """Real ones leave that type out."""
    return {name: one for name, one in schema.items() if (name, one) != ("schemaType", "AVRO")}


def _json(answer: dict[str, Any]) -> web.Response:
    return web.Response(body=orjson.dumps(answer), content_type="application/vnd.schemaregistry.v1+json")


def _refused(status: int, error_code: int, message: str) -> web.Response:
    return web.Response(status=status, body=orjson.dumps({"error_code": error_code, "message": message}))


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None = None) -> AsyncIterator[FakeRegistry]:
    """A registry that answers at its `url`."""
    registry = FakeRegistry()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", registry.answer)
    server = TestServer(application)
    await server.start_server(ssl=tls)
    registry.url = str(server.make_url("/"))
    try:
        yield registry
    finally:
        await server.close()
