"""gateway/codec/cloudevents.py"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.cloudevents import binary_headers, check_structured, http_headers
from gateway.errors import RequestError

EVENT = {"id": "1", "source": "/a", "specversion": "1.0", "type": "t"}
HEADERS = [("CE-Id", "1"), ("ce-source", "/a"), ("ce-specversion", "1.0"), ("ce-type", "t")]


def test_attributes_become_headers_of_the_kafka_binding() -> None:
    stored = binary_headers([*HEADERS, ("ce-subject", "Euro %E2%82%AC"), ("X-Other", "x")])
    assert dict(stored) == {
        "ce_id": b"1",
        "ce_source": b"/a",
        "ce_specversion": b"1.0",
        "ce_type": b"t",
        "ce_subject": "Euro €".encode(),
    }


def test_a_request_without_specversion_is_no_event() -> None:
    assert binary_headers([("ce-id", "1")]) == []


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_any_value_comes_back(value: str) -> None:
    back = http_headers([("ce_subject", value.encode())])
    assert back["ce-subject"].isascii()
    assert back["ce-subject"].isprintable()
    assert dict(binary_headers([*HEADERS, *back.items()]))["ce_subject"] == value.encode()


def test_an_attribute_that_is_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="UTF-8") as caught:
        binary_headers([*HEADERS, ("ce-subject", "\udcff")])
    assert caught.value.error_code == 400


def test_other_record_headers_are_no_attributes() -> None:
    assert http_headers([("trace", b"x"), ("ce_", b"x"), ("ce_UP", b"x"), ("ce_id", None), ("ce_id", b"1")]) == {
        "ce-id": "1"
    }


@pytest.mark.parametrize("name", ["id", "source", "type"])
def test_required_attributes_are_required(name: str) -> None:
    with pytest.raises(RequestError, match=name):
        binary_headers([header for header in HEADERS if header[0].lower() != f"ce-{name}"])
    for value in (None, "", 5):
        with pytest.raises(RequestError, match=name):
            check_structured(orjson.dumps({**EVENT, name: value}))


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", orjson.dumps({**EVENT, "specversion": "0.3"}), orjson.dumps({**EVENT, "Bad_Name": 1})]
)
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        check_structured(body)
    assert caught.value.error_code == 400


def test_the_partition_key_is_the_records_key() -> None:
    assert check_structured(orjson.dumps(EVENT)) is None
    assert check_structured(orjson.dumps({**EVENT, "partitionkey": "pk", "data": {"a": 1}, "data_base64": ""})) == "pk"
