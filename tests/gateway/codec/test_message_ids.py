"""gateway/codec/message_ids.py"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.codec.message_ids import MessageId, message_id_prefix, parse_message_id


@given(st.integers(0, 10**10 - 1), st.integers(0, 10**9 - 1), st.integers(0, 10**18 - 1))
def test_an_id_comes_back_as_it_was_written(topic_id: int, partition: int, offset: int) -> None:
    message_id = MessageId(topic_id, partition, offset)
    assert parse_message_id(message_id.text) == message_id
    assert message_id.text == f"{message_id_prefix(topic_id, partition)}{offset}"


@pytest.mark.parametrize(
    "text", ["", "16-0", "16-0-", "16-0-01", "016-0-1", "16-0--1", "a-0-1", "16-0-1 ", "16-0-²", "1" * 80]
)
def test_there_is_one_spelling_only(text: str) -> None:
    with pytest.raises(ValueError, match="message id"):
        parse_message_id(text)
