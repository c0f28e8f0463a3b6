"""The OpenAPI 3.1 document of a server: its route table, in words and schemas. Pure, but for what it is given.

What every route has is put in here: `X-Request-Id`; 401, 403 and 429 where credentials are needed; 400, 406,
408, 413 and 415 where there is a body or a type to agree on; 503 while the server starts. `/kafka/v3/…` is `/v3/…`
at another address, so the document has it once, with two servers.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from aiohttp import hdrs

from gateway.api.shapes.base import OpenShape
from gateway.api.shapes.schema import not_null, schema_of
from gateway.auth.access import Permission
from gateway.settings.limits import Limits
from gateway.surfaces.http.media import JSON_TYPE
from gateway.surfaces.openapi import errors as meanings
from gateway.surfaces.openapi.operations import OPERATIONS, TAGS, Answer, Operation
from gateway.surfaces.openapi.parameters import answer_headers, path_parameters, request_headers
from gateway.surfaces.openapi.schemas import schemas
from gateway.surfaces.openapi.shapes import Schema

OPENAPI_VERSION = "3.1.1"
KAFKA_PREFIX = "/kafka"

_PARAMETER = re.compile(r"\{(\w+)\}")

_INTRODUCTION = """\
A message queue over HTTP: send with POST, consume with a WebSocket, with Server-Sent Events, or by polling; any record
may be delayed.

Times are epoch milliseconds as integers, or RFC 3339 strings; durations end in `_ms`. Every path answers with a
trailing `/` too, and every GET answers HEAD. Bodies may be compressed (`Content-Encoding: gzip`, `deflate`, `zstd`).
Every answer has `X-Request-Id`; a request's own is repeated. An error is
`{"error_code", "message", "request_id", "retriable"}`; its code is the status, or begins with it.
"""


class Route(Protocol):
    """What is read of a row of the route table."""

    @property
    def method(self) -> str:
        """The HTTP method."""
        ...

    @property
    def path(self) -> str:
        """With names in braces."""
        ...

    @property
    def name(self) -> str:
        """What operations and metrics are named by."""
        ...

    @property
    def handler(self) -> Callable[..., object]:
        """Its docstring describes the operation."""
        ...

    @property
    def permission(self) -> Permission:
        """What a caller needs."""
        ...

    @property
    def query(self) -> type[OpenShape] | None:
        """The parameters it takes."""
        ...

    @property
    def reads_body(self) -> bool:
        """Whether it reads the body itself."""
        ...

    def body_bytes_max(self, limits: Limits) -> int:
        """The largest body."""
        ...


def build_document(
    routes: Sequence[Route], *, limits: Limits, version: str, asks_who: bool, token_in_query: bool = False
) -> dict[str, object]:
    """The document. `asks_who`: the server has authentication. Raises KeyError for a route without description."""
    builder = _Builder(limits, asks_who)
    paths: dict[str, dict[str, object]] = {}
    for route in routes:
        if not route.path.startswith(f"{KAFKA_PREFIX}/"):
            paths.setdefault(route.path, builder.path_item(route))[route.method.lower()] = builder.operation(route)
    components: dict[str, object] = {
        "schemas": schemas(limits),
        "parameters": builder.parameters,
        "headers": builder.headers,
        "responses": builder.responses,
    }
    document: dict[str, object] = {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "mq",
            "version": version,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": components,
    }
    if asks_who:
        components["securitySchemes"] = _security_schemes(token_in_query)
    return document


class _Builder:
    """Collects what operations share, so that the document names it once."""

    def __init__(self, limits: Limits, asks_who: bool) -> None:
        self._limits = limits
        self._asks_who = asks_who
        self._path_schemas = path_parameters()
        self._request_headers = request_headers(limits)
        self._answer_headers = answer_headers()
        self._operation_ids: set[str] = set()
        self.parameters: dict[str, object] = {}
        self.responses: dict[str, object] = {}
        self.headers: dict[str, object] = {
            name: {"schema": schema, **({"required": True} if name == "X-Request-Id" else {})}
            for name, schema in self._answer_headers.items()
        }

    def path_item(self, route: Route) -> dict[str, object]:
        item: dict[str, object] = {}
        names = _PARAMETER.findall(route.path)
        if names:
            item["parameters"] = [self._parameter("path", name, self._path_schemas[name]) for name in names]
        if route.path.startswith("/v3/"):
            item["servers"] = [{"url": "/"}, {"url": KAFKA_PREFIX}]
        return item

    def operation(self, route: Route) -> dict[str, object]:
        described = OPERATIONS[route.name]
        summary, description = words_of(route)
        operation: dict[str, object] = {
            "operationId": self._operation_id(route),
            "tags": [described.tag],
            "summary": summary,
            "description": description,
        }
        if parameters := self._parameters_of(route, described):
            operation["parameters"] = parameters
        if described.body is not None:
            bytes_max = route.body_bytes_max(self._limits)
            operation["requestBody"] = {
                "description": f"At most {bytes_max:,} bytes, inflated." if bytes_max else "Of any length.",
                "required": described.body.is_required,
                "content": {media: {"schema": schema} for media, schema in described.body.content.items()},
            }
        operation["responses"] = self._responses_of(route, described)
        if self._asks_who:
            is_public = route.permission is Permission.PUBLIC
            stream = route.method == hdrs.METH_GET
            schemes = ["token", "key", "basic", *(["ticket"] if stream else [])]
            # A socket may be opened before one has said who one is: `hello` says it.
            needs: list[dict[str, list[str]]] = [{name: []} for name in schemes]
            is_socket = route.permission is Permission.SOCKET and route.method == hdrs.METH_GET
            operation["security"] = [] if is_public else [*needs, {}] if is_socket else needs
        return operation

    def _operation_id(self, route: Route) -> str:
        name = route.name
        number = 2
        while name in self._operation_ids:
            name = f"{route.name}_{number}"
            number += 1
        self._operation_ids.add(name)
        return name

    def _parameters_of(self, route: Route, described: Operation) -> list[object]:
        found: list[object] = []
        if route.query is not None:
            query = schema_of(route.query, self._limits)
            required = query.get("required", ())
            for name, schema in query["properties"].items():
                shown = schema if name in required else not_null(schema)
                found.append(self._parameter("query", name, shown, is_required=name in required))
        for name in (*described.headers, "X-Request-Id"):
            found.append(self._parameter("header", name, self._request_headers[name]))
        return found

    def _parameter(self, location: str, name: str, schema: Schema, *, is_required: bool = False) -> dict[str, object]:
        """A reference to the parameter of this name; the parameter itself when another one has taken the name."""
        key = f"{location}.{name}"
        described = _described(location, name, schema, is_required=is_required or location == "path")
        if self.parameters.setdefault(key, described) != described:
            return described
        return {"$ref": f"#/components/parameters/{key}"}

    def _responses_of(self, route: Route, described: Operation) -> dict[str, object]:
        responses: dict[str, object] = {str(status): self._answer(one) for status, one in described.answers.items()}
        for status, codes in meanings.by_status(self._error_codes(route, described)).items():
            if str(status) not in responses:
                responses[str(status)] = self._refusal(status, codes)
        return dict(sorted(responses.items()))

    def _error_codes(self, route: Route, described: Operation) -> set[int]:
        # Always: what is not HTTP, a page or a host name that is not served, a fault, a server that is starting, and
        # one in which too many bytes of answers wait.
        codes = {400, 40301, 500, 50350, 50351, *described.errors}
        if route.permission is not Permission.PUBLIC:
            codes |= {40101, 42901}
            if route.method == "GET":
                codes.add(40965)  # what a ticket is good for
        if route.reads_body:
            codes |= {400, 408, 413, 415}
        if any(answer.content for answer in described.answers.values()) or described.body is not None:
            codes.add(406)
        return codes

    def _answer(self, answer: Answer) -> dict[str, object]:
        response: dict[str, object] = {
            "description": answer.description,
            "headers": {name: self._header(name) for name in ("X-Request-Id", *answer.headers)},
        }
        if answer.content:
            response["content"] = {media: {"schema": schema} for media, schema in answer.content.items()}
        return response

    def _refusal(self, status: int, codes: Sequence[int]) -> dict[str, object]:
        key = "Error" + "_".join(map(str, codes))
        if key not in self.responses:
            extra = {401: ["WWW-Authenticate"], 429: ["Retry-After"], 503: ["Retry-After"], 507: ["Retry-After"]}
            schema = {
                "allOf": [{"$ref": "#/components/schemas/Error"}],
                "type": "object",
                "properties": {"error_code": {"enum": list(codes)}},
            }
            self.responses[key] = {
                "description": "\n".join(f"- `{code}`: {meanings.MEANINGS[code]}" for code in codes),
                "headers": {name: self._header(name) for name in ("X-Request-Id", *extra.get(status, ()))},
                "content": {JSON_TYPE: {"schema": schema}},
            }
        return {"$ref": f"#/components/responses/{key}"}

    def _header(self, name: str) -> dict[str, str]:
        return {"$ref": f"#/components/headers/{name}"}


def words_of(route: Route) -> tuple[str, str]:
    """A route's one-line summary, and all there is to say: its handler's docstring, and what it asks for."""
    text = inspect.getdoc(route.handler) or ""
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    summary = re.split(r"(?<=[.;]) |: (?=[0-9]{3})", paragraphs[0], maxsplit=1)[0].rstrip(".;")
    if route.permission not in (Permission.PUBLIC, Permission.SOCKET, Permission.KNOWN):
        what = " and ".join(kind for kind in ("topic", "group") if f"{{{kind}}}" in route.path)
        paragraphs.append(f"Needs the right `{route.permission.value}`{f' on the {what}' if what else ''}.")
    return summary, "\n\n".join(paragraphs)


def _described(location: str, name: str, schema: Schema, *, is_required: bool) -> dict[str, object]:
    schema = dict(schema)
    description = schema.pop("description", "")
    return {"name": name, "in": location, "required": is_required, "description": description, "schema": schema}


def _security_schemes(token_in_query: bool) -> Mapping[str, object]:
    schemes = {
        "token": {"type": "http", "scheme": "bearer", "description": "A token of `mq token create`, or a JWT."},
        "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key", "description": "The token in another header."},
        "basic": {"type": "http", "scheme": "basic", "description": "The id and the secret of a token."},
        "ticket": {
            "type": "apiKey",
            "in": "query",
            "name": "ticket",
            "description": "For browsers' sockets and event streams: `POST /mq/v1/tickets`. Good once.",
        },
    }
    if token_in_query:
        schemes["token_in_query"] = {"type": "apiKey", "in": "query", "name": "token"}
    return schemes
