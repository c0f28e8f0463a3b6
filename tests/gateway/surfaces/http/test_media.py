"""gateway/surfaces/http/media.py: the acceptance lists of the REST Proxy's clients."""

from __future__ import annotations

import pytest

from gateway.codec.records import Format
from gateway.codec.schema_parts import SchemaFormat
from gateway.errors import SCHEMA_FORMAT, RequestError
from gateway.surfaces.http.media import (
    V2_TYPE,
    any_format_named,
    format_named,
    json_type,
    prefers,
    records_type,
    schemas_for,
    sent_format,
)


@pytest.mark.parametrize(
    ("content_type", "fmt"),
    [
        ("application/vnd.kafka.v1+json", Format.BINARY),
        ("application/vnd.kafka.v2+json", Format.BINARY),
        ("application/vnd.kafka.binary.v1+json", Format.BINARY),
        ("application/vnd.kafka.binary.v2+json", Format.BINARY),
        ("application/vnd.kafka.json.v2+json", Format.JSON),
        ("application/vnd.kafka.json+json", Format.JSON),
        ("application/vnd.kafka.text.v2+json", Format.TEXT),
        ("application/vnd.kafka+json", Format.BINARY),
        ("application/json", Format.BINARY),
        ("application/octet-stream", Format.BINARY),
        ("Application/VND.Kafka.JSON.v2+json; charset=utf-8", Format.JSON),
        ("application/vnd.mq.batch", None),
    ],
)
def test_accepted_content_types(content_type: str, fmt: Format | None) -> None:
    assert sent_format(content_type) is fmt


@pytest.mark.parametrize(
    "content_type",
    [
        "application/vnd.kafka.v3+json",
        "application/vnd.kafka.binary.v1+foo",
        "application/vnd.kafka.avro.v0+json",
        "application/vnd.kafka.json+avro",
        "application/vnd.kafka",
        "application/vnd.kafka+binary",
        "application/text",
        "bar/baz",
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "xapplication/json",
    ],
)
def test_refused_content_types(content_type: str) -> None:
    with pytest.raises(RequestError) as caught:
        sent_format(content_type)
    assert caught.value.error_code == 415


@pytest.mark.parametrize("fmt", SchemaFormat)
def test_a_schema_format_is_told_what_to_use_instead(fmt: SchemaFormat) -> None:
    name = fmt.value
    media = f"application/vnd.kafka.{name}.v2+json"
    for ask in (
        lambda: schemas_for(None, fmt),
        lambda: records_type(f"text/html, {media}"),
        lambda: format_named(name),
    ):
        with pytest.raises(
            RequestError, match=f"^{name} needs a schema registry.*kafka.json.v2.json.*binary"
        ) as caught:
            ask()
        assert caught.value.error_code == SCHEMA_FORMAT
    assert records_type(f"{media}, application/json;q=0.1").fmt is Format.BINARY
    assert records_type(f"{media}, application/json;q=0.1", has_schemas=True) == (media, None, False, fmt)
    assert sent_format(media) is fmt
    assert any_format_named(name) is fmt


@pytest.mark.parametrize(
    ("accept", "answer"),
    [
        ("application/vnd.kafka.v1+json", V2_TYPE),
        ("application/vnd.kafka+json", V2_TYPE),
        ("application/json", "application/json"),
        ("application/*", V2_TYPE),
        ("*/json", V2_TYPE),
        ("*/*", V2_TYPE),
        ("text/html, application/json;q=0.9, */*;q=0.1", "application/json"),
        ("application/json;q=0.1, application/vnd.kafka.v2+json", V2_TYPE),
        ("application/json;q=0, */*", V2_TYPE),
        ("APPLICATION/JSON", "application/json"),
    ],
)
def test_accepted_accepts(accept: str, answer: str) -> None:
    assert json_type(accept, V2_TYPE) == answer


@pytest.mark.parametrize(
    "accept",
    [
        "application/octet-stream",
        "application/vnd.kafka+foo",
        "application/text",
        "foo/*",
        "bar/json",
        "*/baz",
        "",
        "application/json;q=0",
        "application/json;q=x",
    ],
)
def test_refused_accepts(accept: str) -> None:
    for negotiate in (lambda: json_type(accept, V2_TYPE), lambda: records_type(accept)):
        with pytest.raises(RequestError) as caught:
            negotiate()
        assert caught.value.error_code == 406


@pytest.mark.parametrize(
    ("accept", "content_type", "fmt"),
    [
        ("*/*", "application/vnd.kafka.binary.v2+json", Format.BINARY),
        ("application/vnd.kafka.v2+json", "application/vnd.kafka.binary.v2+json", Format.BINARY),
        ("application/vnd.kafka.json.v2+json", "application/vnd.kafka.json.v2+json", Format.JSON),
        ("application/vnd.kafka.text.v2+json", "application/vnd.kafka.text.v2+json", Format.TEXT),
        ("application/json", "application/json", Format.BINARY),
        ("application/vnd.mq.batch", "application/vnd.mq.batch", None),
        ("application/json;q=0.5, application/vnd.mq.batch", "application/vnd.mq.batch", None),
    ],
)
def test_record_answers(accept: str, content_type: str, fmt: Format | None) -> None:
    assert records_type(accept) == (content_type, fmt, False, None)


@pytest.mark.parametrize("accept", ["application/x-ndjson", "application/jsonl;q=0.9, */*;q=0.1"])
def test_lines(accept: str) -> None:
    assert records_type(accept) == ("application/x-ndjson", None, True, None)


def test_the_most_wanted_of_some_types() -> None:
    assert prefers("a/b;q=0.1, c/d", "a/b", "c/d") == "c/d"
    assert prefers("a/b;q=0, */*", "a/b") is None


def test_formats_by_name() -> None:
    assert [format_named(fmt.value) for fmt in Format] == list(Format)
    with pytest.raises(RequestError, match="Invalid format type"):
        format_named("xml")
