"""The served documents, held against every answer that a test receives through aiohttp.

`install` wraps aiohttp's client. Of each exchange with a server of ours (its answers have X-Request-Id):

    the route       is described; a path that no route has is answered 404 or 405
    the status      is declared for it
    the headers     are declared, as far as they are ours (Mq-*, Retry-After, Location, Idempotent-Replayed)
    the content     has a declared type, and is to the last field what its schema says; lines one by one; errors with
                    an error code that is declared for the route
    the request     when it was done: its query and its JSON body are what the document allows
    text frames     of sockets: a declared answer or push

What does not fit fails the test that received it, with the place in the document.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from typing import Any

import aiohttp
import orjson
import pytest
from aiohttp import WSMsgType, hdrs
from jsonschema_rs import Draft202012Validator, Registry, ValidationError

from gateway.main.routes import ROUTES
from gateway.settings.limits import Limits
from gateway.surfaces.openapi.document import KAFKA_PREFIX, build_document
from gateway.surfaces.openapi.operations import ANY_TYPE, ITEMS
from gateway.surfaces.openapi.sockets import build_socket_document

_stubbed = False
_may_be_bad = False

OUR_HEADERS = ("mq-", "idempotent-", "retry-after", "location")
FREE_HEADERS = ("mq-header-",)
CREDENTIALS = {"ticket", "token"}
COMPONENTS = "mq:components"
"""The URI of what schemas refer to."""

LINE_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")


class Document:
    """One OpenAPI document, for asking what a route may take and answer."""

    def __init__(self) -> None:
        self.openapi: dict[str, Any] = build_document(
            ROUTES, limits=Limits(), version="test", asks_who=True, token_in_query=True
        )
        self._patterns = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path) for path in sorted(self.openapi["paths"], key=_bound)
        ]

        # Tests ask for the same few again: to search the routes, and to write a schema out, took most of a check.
        self.operation = lru_cache(4096)(self._operation)
        """What answers a request, by its method and path; None when nothing does."""

        self._validator = cache(self._new_validator)  # by the schema as JSON

    def _operation(self, method: str, path: str) -> dict[str, Any] | None:
        for candidate in (path, path.removesuffix("/")):
            found = self._find(method, candidate.removeprefix(KAFKA_PREFIX) if _is_v3(candidate) else candidate)
            if found is not None:
                return found
        return None

    def _find(self, method: str, path: str) -> dict[str, Any] | None:
        wanted = "get" if method == hdrs.METH_HEAD else method.lower()
        for pattern, template in self._patterns:
            item = self.openapi["paths"][template]
            if wanted in item and pattern.fullmatch(path):
                operation: dict[str, Any] = item[wanted]
                return operation
        return None

    def resolved(self, node: Mapping[str, Any]) -> Any:
        """What a reference stands for."""
        while "$ref" in node:
            target: Any = self.openapi
            for step in node["$ref"].removeprefix("#/").split("/"):
                target = target[step.replace("~1", "/").replace("~0", "~")]
            node = target
        return node

    def check(self, schema: Mapping[str, Any], value: object, where: str) -> None:
        """Fails with what is wrong and where."""
        try:
            self._validator(orjson.dumps(schema)).validate(value)
        except ValidationError as error:
            shown = orjson.dumps(value)[:2000].decode("utf-8", "replace")
            at = "/".join(map(str, error.instance_path))
            raise AssertionError(f"{where}: {at}: {error.message}\nin {shown}") from None

    def _new_validator(self, schema: bytes) -> Draft202012Validator:
        return Draft202012Validator(_referring(schema), registry=self._components)

    @cached_property
    def _components(self) -> Registry:
        """What schemas refer to, read once: to read all of it for each of them took a hundred times as long."""
        schemas = orjson.dumps({"components": {"schemas": self.openapi["components"]["schemas"]}})
        return Registry([(COMPONENTS, _referring(schemas))])

    @cached_property
    def frames(self) -> Draft202012Validator:
        """What a text frame of the server may be."""
        document: dict[str, Any] = build_socket_document(limits=Limits(), version="test")
        payloads = [
            message["payload"]
            for name, message in document["components"]["messages"].items()
            if name.endswith((".answer", ".push", ".receipt"))
        ]
        return Draft202012Validator({"anyOf": payloads, "components": document["components"]})


def _referring(schema: bytes) -> Any:
    """A schema that refers to COMPONENTS instead of to itself."""
    return orjson.loads(schema.replace(b'"#/components/', f'"{COMPONENTS}#/components/'.encode()))


def _bound(path: str) -> tuple[int, str]:
    """Paths without parameters first."""
    return path.count("{"), path


def _is_v3(path: str) -> bool:
    return path.startswith(f"{KAFKA_PREFIX}/v3/")


@lru_cache
def document() -> Document:
    """The document, made once."""
    return Document()


def check_head(method: str, path: str, status: int, headers: Mapping[str, str]) -> dict[str, Any] | None:
    """The declared answer; None when no route has the path. Fails when there is none of this status or type."""
    operation = document().operation(method, path)
    if operation is None:
        assert status in (400, 403, 404, 405, 204, 429, 503, 505), (
            f"{method} {path} is no route, and was answered {status}"
        )
        return None
    where = f"{method} {path} {status}"
    declared = operation["responses"].get(str(status))
    assert declared is not None, f"{where}: this status is not declared"
    answer: dict[str, Any] = document().resolved(declared)
    for name in headers:
        if name.lower().startswith(OUR_HEADERS) and not name.lower().startswith(FREE_HEADERS):
            known = {header.lower() for header in answer.get("headers", {})}
            assert name.lower() in known, f"{where}: the header {name} is not declared"
    return answer


def schema_of(answer: Mapping[str, Any], content_type: str, where: str) -> dict[str, Any] | None:
    """The schema of a body of this type; None for an empty one. Fails when the type is not declared."""
    content = answer.get("content")
    if not content:
        return None
    media = content_type.partition(";")[0].strip().lower()
    declared = content.get(media, content.get(ANY_TYPE))
    assert declared is not None, f"{where}: the type {media} is not declared"
    schema: dict[str, Any] = declared["schema"]
    return schema


def check_body(answer: Mapping[str, Any] | None, content_type: str, body: bytes, where: str) -> None:
    """Fails when a body is not what is declared."""
    doc = document()
    media = content_type.partition(";")[0].strip().lower()
    if answer is None:
        if body:
            doc.check({"$ref": "#/components/schemas/Error"}, orjson.loads(body), where)
        return
    schema = schema_of(answer, content_type, where)
    if schema is None:
        assert not body, f"{where}: no body is declared, and there is one: {body[:200]!r}"
    elif ITEMS in schema:
        for line in body.split(b"\n"):
            if line.strip():
                doc.check(schema[ITEMS], orjson.loads(line), f"{where} line")
    elif schema.keys() <= {"description"}:
        pass  # bytes of any type
    elif schema.get("type") != "string" and media.endswith("json") and schema.get("format") != "binary":
        doc.check(schema, orjson.loads(body), where)


def check_request(operation: Mapping[str, Any], query: Mapping[str, str], content_type: str, body: object) -> None:
    """Fails when a request that was done is not one the document allows."""
    doc = document()
    where = f"request of {operation['operationId']}"
    known = {one["name"] for one in map(doc.resolved, operation.get("parameters", ())) if one["in"] == "query"}
    unknown = set(query) - known - CREDENTIALS
    assert not unknown, f"{where}: the parameters {unknown} are not declared"
    content = operation.get("requestBody", {}).get("content", {})
    media = content_type.partition(";")[0].strip().lower()
    declared = content.get(media)
    if declared is None and set(content) == {"application/json"}:
        declared = content["application/json"]  # what curl sends is read as JSON where nothing else is
    if declared is None or "format" in query or not isinstance(body, str | bytes) or not body.strip():
        return
    schema = declared["schema"]
    if schema.get("format") != "binary" and ITEMS not in schema and operation["operationId"] != "v3_produce":
        doc.check(schema, orjson.loads(body), where)


@contextmanager
def bad_records() -> Iterator[None]:
    """For requests that are done though some of their records are none that the document allows."""
    global _may_be_bad
    _may_be_bad = True
    try:
        yield
    finally:
        _may_be_bad = False


@contextmanager
def stubbed() -> Iterator[None]:
    """For tests that put handlers of their own behind the routes: only refusals are looked at."""
    global _stubbed
    _stubbed = True
    try:
        yield
    finally:
        _stubbed = False


def install() -> Iterator[None]:
    """Wrap aiohttp's client for as long as the generator is not finished."""
    patch = pytest.MonkeyPatch()
    send = aiohttp.ClientSession._request
    read = aiohttp.ClientResponse.read
    receive = aiohttp.ClientWebSocketResponse.receive

    async def checked_send(self: aiohttp.ClientSession, method: str, url: Any, **options: Any) -> Any:
        response = await send(self, method, url, **options)
        is_checked = not (_stubbed and response.status < 300)
        if "X-Request-Id" in response.headers and not response.history and is_checked:
            path = response.url.raw_path
            response._declared = check_head(method, path, response.status, response.headers)
            if 200 <= response.status < 300:
                operation = document().operation(method, path)
                if operation is not None and not _may_be_bad:
                    data = options.get("data")
                    if options.get("json") is not None:
                        data = orjson.dumps(options["json"])
                    sent_type = response.request_info.headers.get(hdrs.CONTENT_TYPE, "")
                    encoded = hdrs.CONTENT_ENCODING in response.request_info.headers
                    check_request(operation, response.url.query, sent_type, None if encoded else data)
        return response

    async def checked_read(self: aiohttp.ClientResponse) -> bytes:
        body = await read(self)
        declared = getattr(self, "_declared", ...)
        if declared is not ... and self.method != hdrs.METH_HEAD and hdrs.CONTENT_ENCODING not in self.headers:
            where = f"{self.method} {self.url.raw_path} {self.status}"
            check_body(declared, self.headers.get(hdrs.CONTENT_TYPE, ""), body, where)
        return body

    async def checked_receive(self: aiohttp.ClientWebSocketResponse, timeout: float | None = None) -> Any:
        message = await receive(self, timeout)
        if message.type is WSMsgType.TEXT and getattr(self._response, "_declared", None) is not None:
            check_frame(message.data)
        return message

    patch.setattr(aiohttp.ClientSession, "_request", checked_send)
    patch.setattr(aiohttp.ClientResponse, "read", checked_read)
    patch.setattr(aiohttp.ClientWebSocketResponse, "receive", checked_receive)
    yield
    patch.undo()


def check_frame(frame: str | bytes) -> None:
    """Fails when a text frame is none of the declared ones."""
    value = orjson.loads(frame)
    if not document().frames.is_valid(value):
        raise AssertionError(f"not a declared answer or push: {frame[:2000]!r}\n{_closest(value)}")


def _closest(frame: Mapping[str, Any]) -> str:
    """What is wrong with a frame, going by its op or shape."""
    components = build_socket_document(limits=Limits(), version="test")["components"]
    name = f"{frame['op']}.push" if "op" in frame and "id" not in frame else ""
    messages: Any = components["messages"]  # type: ignore[index]
    candidates = [name] if name in messages else [one for one in messages if one.endswith((".answer", ".receipt"))]
    found = []
    for candidate in candidates:
        validator = Draft202012Validator({**messages[candidate]["payload"], "components": components})
        found.append(f"{candidate}: " + "; ".join(error.message for error in validator.iter_errors(frame)))
    return "\n".join(sorted(found, key=len)[:3])
