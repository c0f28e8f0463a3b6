"""gateway/codec/native.py"""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec import native
from gateway.codec.documents import TOO_LONG, Document
from gateway.codec.native import DOCUMENT_BYTES_MAX, load_documents, parse_documents
from gateway.codec.records import ProduceRecord
from gateway.errors import RequestError
from store.limits import KEY_BYTES_MAX, RECORD_BYTES_MAX


def codes(*documents: Document) -> list[int]:
    """The error code of each document, 0 for a good one."""
    return [
        one.error_code if isinstance(one, RequestError) else 0
        for one in parse_documents(documents, raw_keys=False).records
    ]


def record(document: bytes) -> ProduceRecord:
    (one,) = parse_documents([document], raw_keys=False).records
    assert isinstance(one, ProduceRecord), one
    return one


def test_keys_and_values_come_in_three_forms() -> None:
    assert record(b'{"key":"k","value":{"a": 1}}')[:2] == (b'"k"', b'{"a":1}')
    assert record(b'{"key_text":"k","value_text":"\xc3\xa4"}')[:2] == (b"k", "ä".encode())
    assert record(b'{"key_b64":"AAE=","value_b64":"/w=="}')[:2] == (b"\0\1", b"\xff")
    assert record(b'{"key":"k","value_b64":""}')[:2] == (b'"k"', b"")
    assert record(b"{}")[:2] == (None, None)


def test_only_json_is_promised_to_be_json() -> None:
    assert parse_documents([b'{"value":1}', b'{"tag":"a","value":null}'], raw_keys=False).json_values
    assert not parse_documents([b'{"value":1}', b'{"value_text":"x"}'], raw_keys=False).json_values


def test_one_bad_record_does_not_touch_the_others() -> None:
    good = b'{"value":1}'
    assert codes(good, b"{", good, TOO_LONG, b"[1]", b'{"dealy_ms":1}', good) == [0, 400, 0, 41350, 400, 422, 0]


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (b'{"value":1,"value_text":"x"}', 400),
        (b'{"key_text":"a","key_b64":"AA=="}', 400),
        (b'{"value_b64":"A"}', 400),
        (b'{"value_b64":1}', 400),
        (b'{"value_text":1}', 400),
        (b'{"value_text":"x","delay_ms":-1}', 42250),
        (b'{"value_text":"x","tag":""}', 42251),
        (b'{"value_text":"x","offset":5}', 422),
        (b'{"value_text":"x","key":%b1%b}' % (b"[" * 255, b"]" * 255), 422),
    ],
)
def test_bad_records_say_why(document: bytes, code: int) -> None:
    assert codes(document) == [code]


def test_keys_of_every_form_have_the_limit() -> None:
    for name in ("key", "key_text"):
        size = KEY_BYTES_MAX - 2 * (name == "key")  # the quotes of a JSON string count
        assert codes(orjson.dumps({name: "x" * size}), orjson.dumps({name: "x" * (size + 1)})) == [0, 42251]


def test_the_largest_record_fits_a_document_in_base64() -> None:
    whole = b'{"value_b64":"%s"}' % (b"AAAA" * (RECORD_BYTES_MAX // 3) + b"AA==")
    assert len(whole) <= DOCUMENT_BYTES_MAX
    value = record(whole).value
    assert value is not None
    assert len(value) == RECORD_BYTES_MAX
    assert codes(b'{"value_b64":"%s"}' % (b"AAAA" * (RECORD_BYTES_MAX // 3) + b"AAA=")) == [41350]


@given(
    st.lists(
        st.one_of(st.binary(max_size=10), st.sampled_from([b'{"value":1}', b'{"value":[1', b"2]}", b'{},"x",{}', b"1"]))
    )
)
def test_documents_are_judged_alone_even_when_they_are_parsed_together(documents: list[bytes]) -> None:
    together = load_documents(documents)
    alone = [load_documents([one])[0] for one in documents]
    assert [isinstance(one, RequestError) for one in together] == [isinstance(one, RequestError) for one in alone]


def test_lines_that_are_json_only_together_are_refused() -> None:
    assert codes(b'{"value":1},{"value":2}', b'{"value":[1', b"2]}") == [400, 400, 400]
    assert len(native._SEPARATOR) > 32  # nobody guesses it
