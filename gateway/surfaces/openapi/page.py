"""The documents as one page of HTML for people: rendered here, read without a network. Pure.

What the page shows is what the documents say, nothing else; every text is escaped. Its style and its script (a filter,
opening what a link points to, and a form to try each route; the page works without it) are in page.css and page.js and
go into the page. The policy lets in these two, and requests to the server that the page is from.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import orjson

from gateway.surfaces.http.statuses import status_of
from gateway.surfaces.openapi.errors import MEANINGS

_STYLE = files(__package__).joinpath("page.css").read_text("utf-8")
_SCRIPT = files(__package__).joinpath("page.js").read_text("utf-8")
_ADDRESS = "http://localhost:8082"
UNINTERESTING = 10**14
"""Upper bounds beyond this are those of offsets and of times: not shown."""

DEPTH = 2
"""References that are followed where a body is shown; further ones are links."""

_METHODS = ("get", "post", "put", "patch", "delete")
_CODE = re.compile(r"`([^`]+)`")

Node = Mapping[str, Any]


def _hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


CONTENT_SECURITY_POLICY = (
    f"default-src 'none'; style-src {_hash_source(_STYLE)}; script-src {_hash_source(_SCRIPT)}; "
    "connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def render_page(openapi: Node, asyncapi: Node) -> str:
    """The page."""
    return _Page(openapi, asyncapi).html()


class _Page:
    def __init__(self, openapi: Node, asyncapi: Node) -> None:
        self._openapi = openapi
        self._asyncapi = asyncapi
        self._schemas: Node = openapi["components"]["schemas"]
        self._by_tag: dict[str, list[tuple[str, str, Node, Node]]] = {tag["name"]: [] for tag in openapi["tags"]}
        for path, item in openapi["paths"].items():
            for method in _METHODS:
                if method in item:
                    self._by_tag[item[method]["tags"][0]].append((method, path, item, item[method]))

    def html(self) -> str:
        info = self._openapi["info"]
        sections = [
            self._introduction(),
            *(self._section(tag["name"], tag["description"]) for tag in self._openapi["tags"]),
            self._sockets(),
            self._errors(),
            self._shapes(),
        ]
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            '<meta name="color-scheme" content="light dark">\n'
            f"<title>mq {escape(info['version'])}: HTTP and WebSocket reference</title>\n"
            f"<style>{_STYLE}</style>\n</head>\n<body>\n"
            f"{self._navigation()}\n<main>\n{''.join(sections)}</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
        )

    # ------------------------------------------------------------------------------------------------ frame

    def _navigation(self) -> str:
        parts = []
        for tag, operations in self._by_tag.items():
            links = "".join(
                f'<li data-find="{_attribute(path + " " + one["summary"])}"><a href="#{one["operationId"]}">'
                f"{_badge(method)}<span>{_inline(one['summary'])}</span></a></li>"
                for method, path, _, one in operations
            )
            parts.append(
                f'<details><summary>{escape(tag)}</summary><ul><li data-find="{_attribute(tag)}">'
                f'<a href="#{_slug(tag)}">All of it</a></li>{links}</ul></details>'
            )
        more = "".join(
            f'<p><a href="#{anchor}">{text}</a></p>'
            for anchor, text in (("frames", "WebSocket frames"), ("errors", "Error codes"), ("shapes", "Shapes"))
        )
        return (
            '<nav aria-label="Contents"><p class="brand"><a href="#top">mq</a></p>'
            '<input type="search" id="filter" placeholder="Filter: topic, ack, /v3 …" aria-label="Filter routes" '
            'autocomplete="off" hidden>'
            f'<div class="contents">{"".join(parts)}{more}</div></nav>'
        )

    def _introduction(self) -> str:
        info = self._openapi["info"]
        example = (
            f"curl -X PUT {_ADDRESS}/mq/v1/topics/orders -d '{{\"partitions\": 4}}'\n"
            f"curl '{_ADDRESS}/mq/v1/topics/orders/messages?key=u1' -d '{{\"sku\": 9}}'\n"
            f"curl -N '{_ADDRESS}/mq/v1/topics/orders/sse?from=earliest'"
        )
        return (
            f'<header id="top"><h1>mq <small>{escape(info["version"])}</small></h1>'
            f"{_paragraphs(info['description'])}<pre><code>{escape(example)}</code></pre>"
            '<p class="files"><a href="/openapi.json">openapi.json</a> <a href="/asyncapi.json">asyncapi.json</a></p>'
            f"{self._who()}</header>"
        )

    def _who(self) -> str:
        schemes = self._openapi["components"].get("securitySchemes")
        if not schemes:
            return "<p>Authentication is disabled.</p>"
        rows = "".join(
            f"<tr><td><code>{escape(_scheme(one))}</code></td><td>{_inline(one.get('description', ''))}</td></tr>"
            for one in schemes.values()
        )
        field = (
            '<p id="token" hidden><label>Token to try routes with <input type="password" autocomplete="off" '
            'spellcheck="false"></label> <small role="status"></small></p>'
        )
        return f"<p>Credentials are needed. One of:</p>{_table(rows)}{field}"

    # ------------------------------------------------------------------------------------------------ routes

    def _section(self, tag: str, description: str) -> str:
        operations = "".join(self._operation(*one) for one in self._by_tag[tag])
        return f'<section id="{_slug(tag)}"><h2>{escape(tag)}</h2><p>{_inline(description)}</p>{operations}</section>'

    def _operation(self, method: str, path: str, item: Node, one: Node) -> str:
        find = _attribute(f"{method} {path} {one['summary']}")
        can_try = "" if "101" in one["responses"] else " data-try"  # no page can ask for another protocol like this
        others = [server["url"] for server in item.get("servers", ()) if server["url"] != "/"]
        also = "".join(f"<p>Also at <code>{escape(prefix + path)}</code>.</p>" for prefix in others)
        return (
            f'<details class="operation" id="{one["operationId"]}" data-find="{find}"{can_try}>'
            f"<summary>{_badge(method)}"
            f'<code class="path">{_path(path)}</code><span class="what">{_inline(one["summary"])}</span></summary>'
            f'<div class="inside">{_paragraphs(one["description"])}{also}'
            f"<pre><code>{escape(self._curl(method, path, item, one))}</code></pre>"
            f"{self._parameters(item, one)}{self._request(one)}{self._responses(one)}</div></details>"
        )

    def _curl(self, method: str, path: str, item: Node, one: Node) -> str:
        for parameter in map(self._resolved, item.get("parameters", ())):
            examples = parameter["schema"].get("examples", [parameter["name"].upper()])
            path = path.replace(f"{{{parameter['name']}}}", str(examples[0]))
        required = [
            f"{parameter['name']}={parameter['name'].upper()}"
            for parameter in map(self._resolved, one.get("parameters", ()))
            if parameter["in"] == "query" and parameter["required"]
        ]
        address = _ADDRESS + path + (f"?{'&'.join(required)}" if required else "")
        words = ["curl", *([] if method in ("get", "post") else [f"-X {method.upper()}"]), f"'{address}'"]
        content = one.get("requestBody", {}).get("content", {})
        for media, body in content.items():
            example = self._example(body["schema"])
            if example is not None:
                if media != "application/json":
                    words.append(f"-H 'Content-Type: {media}'")
                words.append(f"\\\n     -d '{orjson.dumps(example).decode()}'")
                break
        else:
            if method == "post":
                words.insert(1, "-X POST" if not content else "--data-binary @FILE")
        return " ".join(words)

    def _example(self, schema: Node) -> object:
        found = self._resolved(schema)
        examples = found.get("examples", found.get("x-item-schema", {}).get("examples"))
        return examples[0] if examples else None

    def _parameters(self, item: Node, one: Node) -> str:
        parameters = [self._resolved(each) for each in (*item.get("parameters", ()), *one.get("parameters", ()))]
        rows = "".join(
            f"<tr><td><code>{escape(each['name'])}</code>{_required(each['required'])}</td><td>{each['in']}</td>"
            f"<td>{self._type(each['schema'])}</td><td>{_inline(each['description'])}</td></tr>"
            for each in parameters
            if each["name"] != "X-Request-Id"
        )
        return f"<h4>Parameters</h4>{_table(rows)}" if rows else ""

    def _request(self, one: Node) -> str:
        body = one.get("requestBody")
        if body is None:
            return ""
        optional = "" if body["required"] else " <small>optional</small>"
        size = f'<p class="type">{_inline(body["description"])}</p>'
        return f"<h4>Body{optional}</h4>{size}{self._content(body['content'])}"

    def _content(self, content: Node) -> str:
        by_schema: dict[bytes, tuple[Node, list[str]]] = {}
        for media, described in content.items():
            by_schema.setdefault(orjson.dumps(described["schema"]), (described["schema"], []))[1].append(media)
        return "".join(
            f'<div class="body"><p class="types">{" ".join(f"<code>{escape(media)}</code>" for media in types)}</p>'
            f"{self._shape(schema, DEPTH)}</div>"
            for schema, types in by_schema.values()
        )

    def _responses(self, one: Node) -> str:
        good, bad = [], []
        for status, response in one["responses"].items():
            answer = self._resolved(response)
            described = answer["description"]
            if "$ref" in response:
                meanings = "".join(
                    f'<li><a href="#error-{code}"><code>{code}</code></a> {_inline(MEANINGS[code])}</li>'
                    for code in _codes(answer)
                )
                bad.append(
                    f'<tr><td><b class="status">{status}</b></td><td><ul class="codes">{meanings}</ul></td></tr>'
                )
                continue
            headers = " ".join(f"<code>{escape(name)}</code>" for name in answer["headers"] if name != "X-Request-Id")
            told = f'<p class="headers">Headers: {headers}</p>' if headers else ""
            content = self._content(answer["content"]) if "content" in answer else ""
            good.append(
                f'<div class="answer"><p><b class="status ok">{status}</b> {_inline(described)}</p>'
                f"{told}{content}</div>"
            )
        refusals = f'<details class="refusals"><summary>Errors</summary>{_table("".join(bad))}</details>'
        return f"<h4>Answers</h4>{''.join(good)}{refusals}"

    # ------------------------------------------------------------------------------------------------ sockets

    def _sockets(self) -> str:
        messages: Node = self._asyncapi["components"]["messages"]
        rows = []
        for name, operation in self._asyncapi["operations"].items():
            if operation["action"] != "receive":
                continue
            command, answer = messages[name], messages[f"{name}.answer"]
            rows.append(
                self._frame(name, "send", command["summary"], command["payload"], ("The answer", answer["payload"]))
            )
        for name, message in messages.items():
            if name.endswith((".push", ".receipt")):
                rows.append(self._frame(name.rpartition(".")[0], "push", message["summary"], message["payload"]))
        info = self._asyncapi["info"]["description"]
        return (
            f'<section id="frames"><h2>WebSocket frames</h2><p>{_inline(info)}</p>'
            f"<p>What a client sends ({_badge('send')}) and what it is told ({_badge('push')}).</p>"
            f"{''.join(rows)}</section>"
        )

    def _frame(self, name: str, kind: str, summary: str, payload: Node, *more: tuple[str, Node]) -> str:
        others = "".join(f"<h4>{title}</h4>{self._shape(schema)}" for title, schema in more)
        return (
            f'<details class="operation" id="frame-{_slug(name)}-{kind}" data-find="{_attribute(f"{name} {summary}")}">'
            f'<summary>{_badge(kind)}<code class="path">{escape(name)}</code>'
            f'<span class="what">{_inline(summary)}</span></summary>'
            f'<div class="inside">{self._shape(payload)}{others}</div></details>'
        )

    # ------------------------------------------------------------------------------------------------ tables

    def _errors(self) -> str:
        rows = "".join(
            f'<tr id="error-{code}"><td>{status_of(code)}</td><td><code>{code}</code></td>'
            f"<td>{_inline(meaning)}</td></tr>"
            for code, meaning in sorted(MEANINGS.items(), key=lambda item: (status_of(item[0]), item[0]))
        )
        return f'<section id="errors"><h2>Error codes</h2>{_table(rows)}</section>'

    def _shapes(self) -> str:
        shapes = "".join(
            f'<details class="operation" id="schema-{name}" data-find="{_attribute(name)}"><summary>'
            f'<code class="path">{escape(name)}</code></summary>'
            f'<div class="inside">{self._shape(schema)}</div></details>'
            for name, schema in self._schemas.items()
        )
        return f'<section id="shapes"><h2>Shapes</h2>{shapes}</section>'

    # ------------------------------------------------------------------------------------------------ schemas

    def _resolved(self, node: Node) -> Node:
        while "$ref" in node:
            target: Any = self._openapi
            for step in node["$ref"].removeprefix("#/").split("/"):
                target = target[step]
            node = target
        return node

    def _shape(self, schema: Node, depth: int = 0) -> str:
        """A schema in full: its type, its words, its fields; so many references deep."""
        told = f"<p>{_inline(schema['description'])}</p>" if schema.get("description") else ""
        items = schema.get("x-item-schema")
        if items is not None:
            return f'{told}<p class="type">Each: {self._type(items)}</p>{self._fields(items, depth)}'
        return f'{told}<p class="type">{self._type(schema)}</p>{self._fields(schema, depth)}'

    def _fields(self, schema: Node, depth: int = 0) -> str:
        if "$ref" in schema:
            return self._fields(self._resolved(schema), depth - 1) if depth else ""
        alternatives = schema.get("anyOf", ())
        if any(one.get("properties") for one in alternatives):
            shown = "".join(f"<li>{self._shape(one, depth)}</li>" for one in alternatives)
            return f'<ul class="either">{shown}</ul>'
        if schema.get("type") == "array" or "items" in schema:
            return self._fields(schema["items"], depth)
        required = schema.get("required", ())
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code>{_required(name in required)}</td><td>{self._type(one)}</td>"
            f"<td>{_inline(one.get('description', ''))}</td></tr>{_nested(self._fields(one, depth))}"
            for name, one in schema.get("properties", {}).items()
        )
        return _table(rows) if rows else ""

    def _type(self, schema: Node) -> str:
        """A schema in a few words."""
        if "$ref" in schema:
            name = schema["$ref"].rpartition("/")[2]
            return f'<a href="#schema-{name}">{escape(name)}</a>'
        if "const" in schema:
            return f"<code>{escape(orjson.dumps(schema['const']).decode())}</code>"
        if "enum" in schema:
            return " | ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"])
        if "anyOf" in schema:
            return " | ".join(dict.fromkeys(self._type(one) for one in schema["anyOf"]))
        kinds = schema.get("type")
        if kinds is None:
            return "any JSON"
        texts = [self._kind(kind, schema) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
        return " | ".join(texts)

    def _kind(self, kind: str, schema: Node) -> str:
        if kind == "array":
            return f"[{self._type(schema['items'])}]{_bounds(schema, 'minItems', 'maxItems')}"
        if (
            kind == "object"
            and not schema.get("properties")
            and isinstance(schema.get("additionalProperties"), Mapping)
        ):
            return f"{{name: {self._type(schema['additionalProperties'])}}}"
        if kind in ("integer", "number"):
            return kind + _bounds(schema, "minimum", "maximum")
        if kind == "string":
            form = schema.get("format") or schema.get("contentEncoding")
            return (f"{kind} ({escape(form)})" if form else kind) + _bounds(schema, "minLength", "maxLength")
        return kind


def _bounds(schema: Node, low: str, high: str) -> str:
    least, most = schema.get(low), schema.get(high)
    if most is not None and most > UNINTERESTING:
        most = None
    if most is None:
        return f" ≥ {least:,}" if least else ""
    return f" {least or 0:,}–{most:,}"


def _codes(answer: Node) -> Sequence[int]:
    codes: Sequence[int] = answer["content"]["application/json"]["schema"]["properties"]["error_code"]["enum"]
    return codes


def _scheme(scheme: Node) -> str:
    if scheme["type"] == "apiKey":
        return f"{scheme['name']}: …" if scheme["in"] == "header" else f"?{scheme['name']}=…"
    return f"Authorization: {scheme['scheme'].capitalize()} …"


def _badge(method: str) -> str:
    return f'<b class="method {method}">{method.upper()}</b>'


def _path(path: str) -> str:
    """A path that may be broken behind its slashes; its parameters stand out."""
    return re.sub(r"\{(\w+)\}", r"<i>{\1}</i>", escape(path).replace("/", "/<wbr>"))


def _required(is_required: bool) -> str:
    return '<sup title="required">*</sup>' if is_required else ""


def _table(rows: str) -> str:
    return f'<div class="wide"><table>{rows}</table></div>'


def _nested(fields: str) -> str:
    return f'<tr class="nested"><td colspan="3">{fields}</td></tr>' if fields else ""


def _inline(text: str) -> str:
    return _CODE.sub(r"<code>\1</code>", escape(text, quote=False))


def _paragraphs(text: str) -> str:
    return "".join(f"<p>{_inline(paragraph)}</p>" for paragraph in text.strip().split("\n\n"))


def _slug(text: str) -> str:
    return re.sub(r"\W+", "-", text.lower())


def _attribute(text: str) -> str:
    return escape(text.lower())
