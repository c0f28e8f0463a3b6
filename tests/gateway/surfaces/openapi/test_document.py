"""gateway/surfaces/openapi: the document (operations, parameters, schemas, shapes, errors, document) against the code.

That answers are as declared is in tests/contract.py, and seen by every test that speaks HTTP.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
from jsonschema_rs import Draft202012Validator
from openapi_spec_validator import validate

from gateway.api.shapes import queries
from gateway.api.shapes.base import OpenShape, Shape
from gateway.main.routes import ROUTES
from gateway.settings.limits import Limits
from gateway.surfaces.http.routes import SMALL_BODY_BYTES_MAX
from gateway.surfaces.http.statuses import status_of
from gateway.surfaces.openapi import operations, parameters, shapes
from gateway.surfaces.openapi.document import KAFKA_PREFIX, build_document, words_of
from gateway.surfaces.openapi.errors import MEANINGS, by_status
from gateway.surfaces.openapi.schemas import parts, schemas
from gateway.surfaces.openapi.table import routes_page

REPOSITORY = Path(__file__).resolve().parents[4]
DOCS = REPOSITORY / "docs"
LIMITS = Limits()
FIVE_DIGITS = re.compile(r"= [45]\d_?\d{3}\b")


@cache
def document(*, asks_who: bool = True) -> dict[str, Any]:
    return build_document(ROUTES, limits=LIMITS, version="1", asks_who=asks_who)


def operations_of(openapi: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            if method not in ("parameters", "servers"):
                yield method.upper(), path, operation


@pytest.mark.parametrize("asks_who", [True, False])
def test_it_is_openapi(asks_who: bool) -> None:
    validate(document(asks_who=asks_who))


def test_every_route_is_in_it_and_nothing_else() -> None:
    described = {(method, path) for method, path, _ in operations_of(document())}
    assert described == {(row.method, row.path) for row in ROUTES if not row.path.startswith(KAFKA_PREFIX)}
    again = {row.path.removeprefix(KAFKA_PREFIX) for row in ROUTES if row.path.startswith(KAFKA_PREFIX)}
    named = {path for path, item in document()["paths"].items() if "servers" in item}
    assert again == named


def test_every_route_is_described_in_words_and_every_description_is_of_a_route() -> None:
    assert {row.name for row in ROUTES} == operations.OPERATIONS.keys()
    for row in ROUTES:
        summary, description = words_of(row)
        assert summary, row.path
        assert "Raises" not in description, f"{row.name}: what a handler raises is no concern of its clients"


def test_a_route_without_description_is_noticed() -> None:
    row = next(row for row in ROUTES if row.name == "healthz")
    object.__setattr__(unknown := type(row)(**{name: getattr(row, name) for name in row.__slots__}), "name", "unknown")
    with pytest.raises(KeyError):
        build_document([unknown], limits=LIMITS, version="1", asks_who=True)


def test_every_parameter_and_header_that_is_described_is_used() -> None:
    used = {row.query for row in ROUTES} | {queries.NoQuery}  # of streams, whose documents are described elsewhere
    of_module = {one for one in vars(queries).values() if isinstance(one, type) and issubclass(one, OpenShape)}
    assert of_module - {Shape, OpenShape} <= used
    path = {name for row in ROUTES for name in re.findall(r"\{(\w+)\}", row.path)}
    assert parameters.path_parameters().keys() == path
    taken = {header for one in operations.OPERATIONS.values() for header in one.headers}
    assert parameters.request_headers(LIMITS).keys() == taken | {"X-Request-Id"}
    text = orjson.dumps(document()).decode()
    for header in parameters.answer_headers().keys() - {"Allow"}:
        assert f"#/components/headers/{header}" in text, header


def test_every_schema_is_used_and_legal_and_its_examples_fit() -> None:
    openapi = document()
    text = orjson.dumps(openapi).decode()
    components = {"components": {"schemas": openapi["components"]["schemas"]}}
    for name, schema in schemas(LIMITS).items():
        assert f'"#/components/schemas/{name}"' in text or name == "V3Record", name
        validator = Draft202012Validator({**schema, **components})
        for example in schema.get("examples", ()):  # type: ignore[attr-defined]
            validator.validate(example)


def test_no_schema_takes_the_name_of_another() -> None:
    names = [name for part in parts(LIMITS) for name in part]
    assert len(names) == len(set(names))


def test_objects_are_closed() -> None:
    validator = Draft202012Validator(shapes.obj({"a": shapes.COUNT}, {"b": shapes.nullable(shapes.STRING)}))
    assert validator.is_valid({"a": 1, "b": None})
    for wrong in ({}, {"a": -1}, {"a": 1, "c": 1}, {"a": 1, "b": 1}):
        assert not validator.is_valid(wrong)


def test_limits_of_the_server_are_in_it() -> None:
    openapi = build_document(ROUTES, limits=Limits(records_per_request_max=7), version="1", asks_who=False)
    assert openapi["components"]["schemas"]["JsonRecords"]["properties"]["records"]["maxItems"] == 7  # type: ignore[index]


def test_the_size_of_bodies_is_in_it() -> None:
    told = {
        path: one["requestBody"]["description"] for _, path, one in operations_of(document()) if "requestBody" in one
    }
    assert told["/topics/{topic}"] == f"At most {LIMITS.body_bytes_max:,} bytes, inflated."
    assert told["/admin/topics"] == f"At most {SMALL_BODY_BYTES_MAX:,} bytes, inflated."
    assert told["/mq/v1/topics/{topic}/messages:batch"] == "Of any length."


def test_every_body_that_is_read_is_described() -> None:
    described = {(method, path) for method, path, one in operations_of(document()) if "requestBody" in one}
    read = {(row.method, row.path) for row in ROUTES if row.reads_body and not row.path.startswith(KAFKA_PREFIX)}
    # Old clients may send it with a GET, for which OpenAPI has no body; there is a query and a POST instead.
    assert read - described == {("GET", "/consumers/{group}/instances/{instance}/offsets")}
    assert described <= read


def test_who_one_is_is_asked_where_it_is_asked() -> None:
    assert not any("security" in operation for _, _, operation in operations_of(document(asks_who=False)))
    assert "securitySchemes" not in document(asks_who=False)["components"]
    for method, path, operation in operations_of(document()):
        row = next(row for row in ROUTES if (row.method, row.path) == (method, path))
        is_public = row.permission.value == "public"
        assert (operation["security"] == []) == is_public
        assert ("401" in operation["responses"]) == (not is_public), path


# Errors


def test_a_code_begins_with_its_status() -> None:
    assert by_status([50350, 42250, 404, 40401, 40001]) == {404: [404, 40401], 422: [40001, 42250], 503: [50350]}
    assert status_of(50750) == 507


def codes_in_the_code() -> set[int]:
    """Five-digit constants of the gateway."""
    found: set[int] = set()
    for path in (REPOSITORY / "gateway").rglob("*.py"):
        text = path.read_text()
        if not FIVE_DIGITS.search(text):
            continue
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Assign(targets=[ast.Name(name)], value=ast.Constant(int(code))) if (
                    name.isupper() and 40000 < code < 51000 and code % 1000
                ):
                    found.add(code)
                case _:
                    pass
    return found


def test_every_error_code_has_a_meaning() -> None:
    codes = codes_in_the_code()
    assert len(codes) > 35
    assert {code for code in MEANINGS if code > 1000} == codes


def test_the_guides_have_every_error_code() -> None:
    text = "".join((DOCS / name).read_text() for name in ("http.md", "groups-http.md", "websocket.md"))
    missing = [code for code in MEANINGS if code > 1000 and str(code) not in text]
    assert missing == []


def test_the_guides_have_every_route() -> None:
    assert (DOCS / "routes.md").read_text() == routes_page(ROUTES), "run: make routes"
    assert "(routes.md)" in (DOCS / "http.md").read_text()
