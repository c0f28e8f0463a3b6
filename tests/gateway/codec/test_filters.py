"""gateway/codec/filters.py"""

from __future__ import annotations

import pytest

from gateway.codec.filters import FILTER_TAGS_MAX, parse_filter
from gateway.codec.tags import TAG_HEADER, tag_hash
from gateway.errors import RequestError
from store.limits import TAG_BYTES_MAX


def test_a_filter_names_tags_and_knows_their_hashes() -> None:
    chosen = parse_filter(" tag:paid || refunded ")
    assert chosen is not None
    assert chosen.tags == {"paid", "refunded"}
    assert chosen.hashes == {tag_hash("paid"), tag_hash("refunded")}


@pytest.mark.parametrize("text", [None, "", "*", " * "])
def test_no_filter_lets_everything_pass(text: str | None) -> None:
    assert parse_filter(text) is None


def test_the_real_tag_decides_not_its_hash() -> None:
    chosen = parse_filter("tag:paid")
    assert chosen is not None
    assert chosen.wants([("a", b"x"), (TAG_HEADER, b"paid")])
    assert not chosen.wants([(TAG_HEADER, b"Paid")])
    assert not chosen.wants([(TAG_HEADER, None)])
    assert not chosen.wants([("tag", b"paid")])
    assert not chosen.wants([])


@pytest.mark.parametrize("text", ["paid", "tag:", "tag:a||", "tag:a|b", "tag:a\x00", "price > 5"])
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_filter(text)
    assert caught.value.error_code == 42252


def test_the_number_and_size_of_tags_are_limited() -> None:
    names = [f"t{number}" for number in range(FILTER_TAGS_MAX + 1)]
    assert parse_filter("tag:" + "||".join(names[:-1])) is not None
    with pytest.raises(RequestError, match=str(FILTER_TAGS_MAX)):
        parse_filter("tag:" + "||".join(names))
    assert parse_filter("tag:" + "x" * TAG_BYTES_MAX) is not None
    with pytest.raises(RequestError, match=str(TAG_BYTES_MAX)):
        parse_filter("tag:" + "x" * (TAG_BYTES_MAX + 1))
