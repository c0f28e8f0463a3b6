"""gateway/auth/credentials.py"""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import CIMultiDict

from gateway.auth.credentials import Credential, Malformed, in_headers, of_browser


def headers(*pairs: tuple[str, str]) -> CIMultiDict[str]:
    return CIMultiDict(pairs)


def basic(text: str) -> tuple[str, str]:
    return "Authorization", "Basic " + base64.b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("pair", "token"),
    [
        (("Authorization", "Bearer abc"), "abc"),
        (("authorization", "bearer  abc "), "abc"),
        (("X-Api-Key", "abc"), "abc"),
        (basic("id:secret"), "mq_id_secret"),
        (basic("me:mq_id_se:cret"), "mq_id_se:cret"),
        (("Authorization", "Basic aWQ6c2VjcmV0"), "mq_id_secret"),
    ],
)
def test_credentials_are_found(pair: tuple[str, str], token: str) -> None:
    assert in_headers(headers(pair)) == Credential(token)


def test_no_credentials_are_none() -> None:
    assert in_headers(headers(("Host", "x"))) is None
    assert of_browser(headers(("Sec-WebSocket-Protocol", "mq.v1.json")), {"a": "b"}, token_in_query=True) is None


@pytest.mark.parametrize(
    "pairs",
    [
        [("Authorization", "Bearer a"), ("Authorization", "Bearer a")],
        [("Authorization", "Bearer a"), ("X-Api-Key", "a")],
        [("X-Api-Key", "a"), ("X-Api-Key", "b")],
        [("X-Api-Key", "")],
        [("Authorization", "")],
        [("Authorization", "Bearer")],
        [("Authorization", "Bearer ")],
        [("Authorization", "Digest a")],
        [("Authorization", "Basic %%%")],
        [("Authorization", "Basic /w==")],
        [basic("nocolon")],
    ],
)
def test_what_cannot_be_read_or_comes_twice_is_refused(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(Malformed):
        in_headers(headers(*pairs))


def test_a_browser_has_tickets_and_subprotocols() -> None:
    encoded = base64.urlsafe_b64encode(b"the.token?").decode().rstrip("=")
    for pairs, query, expected in (
        ([], {"ticket": "t"}, Credential("t", True)),
        ([("Sec-WebSocket-Protocol", "mq.v1.json, mq.ticket.t")], {}, Credential("t", True)),
        ([("Sec-WebSocket-Protocol", f"mq.v1.json, mq.bearer.{encoded}")], {}, Credential("the.token?")),
    ):
        assert of_browser(headers(*pairs), query, token_in_query=False) == expected
    with pytest.raises(Malformed):
        of_browser(headers(("Sec-WebSocket-Protocol", "mq.ticket.a")), {"ticket": "b"}, token_in_query=False)


def test_a_token_in_the_query_counts_only_where_it_is_allowed() -> None:
    assert of_browser(headers(), {"token": "a"}, token_in_query=False) is None
    assert of_browser(headers(), {"token": "a"}, token_in_query=True) == Credential("a")


@given(st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=60), st.booleans())
@example("Basic " + base64.b64encode(b"\xff:\xfe").decode(), True)
def test_any_text_is_read_or_refused_without_being_repeated(text: str, is_authorization: bool) -> None:
    repeated = False
    name = "Authorization" if is_authorization else "Sec-WebSocket-Protocol"
    try:
        if is_authorization:
            in_headers(headers((name, text)))
        else:
            of_browser(headers((name, text)), {}, token_in_query=True)
    except Malformed as refusal:
        repeated = len(text) >= 12 and text in str(refusal)
    assert not repeated
