"""Codes of requests and answers, and requests that come again.

Covers gateway.cluster.peer_auth.
"""

from __future__ import annotations

import pytest

from gateway.cluster import peer_auth
from gateway.cluster.peer_auth import (
    CLOCK_SKEW_MS_MAX,
    SECRET_BYTES_MIN,
    WINDOW,
    NotAuthentic,
    Secret,
    SeenRequests,
    Stamp,
    check_code,
    parse_stamp,
)

SECRET = Secret(bytes(SECRET_BYTES_MIN))
NOW_MS = 1_000_000


def test_a_secret_has_its_least_length() -> None:
    with pytest.raises(ValueError, match="at least 16"):
        Secret(bytes(SECRET_BYTES_MIN - 1))


def test_a_code_is_of_everything_that_is_said_and_of_the_secret() -> None:
    stamp = Stamp("a", 1, 2)
    codes = {
        SECRET.head_code(stamp, "/p", 4),
        SECRET.head_code(stamp._replace(sender="b"), "/p", 4),
        SECRET.head_code(stamp._replace(number=2), "/p", 4),
        SECRET.head_code(stamp._replace(time_ms=3), "/p", 4),
        SECRET.head_code(stamp, "/q", 4),
        SECRET.head_code(stamp, "/p", 5),
        Secret(b"x" * SECRET_BYTES_MIN).head_code(stamp, "/p", 4),
        SECRET.request_code("c", b"body"),
        SECRET.request_code("d", b"body"),
        SECRET.request_code("c", b"bodY"),
        SECRET.answer_code("c", 200, b"body"),
        SECRET.answer_code("d", 200, b"body"),
        SECRET.answer_code("c", 401, b"body"),
        SECRET.answer_code("c", 200, b"bodY"),
    }
    assert len(codes) == 14
    strange = Stamp(b"\xff".decode(errors="surrogateescape"), 1, 2)  # of a stranger's header
    assert SECRET.head_code(strange, "/p", 4) not in codes
    check_code("a", "a")
    for given in ("b", "", "ab", "\u00e4", b"\xff".decode(errors="surrogateescape")):
        with pytest.raises(NotAuthentic):
            check_code("a", given)


def test_a_stamp_survives_its_header() -> None:
    assert parse_stamp(Stamp("n1", 5, NOW_MS).text) == Stamp("n1", 5, NOW_MS)
    for text in ("", "a b", "a b c", "a 1 2 3"):
        with pytest.raises(NotAuthentic):
            parse_stamp(text)


def test_each_number_of_a_sender_comes_once_and_not_too_far_behind() -> None:
    seen = SeenRequests()
    for number in (5, 3, 4, 0, WINDOW + 2):
        seen.check(Stamp("a", number, NOW_MS), NOW_MS)
    seen.check(Stamp("b", 5, NOW_MS), NOW_MS)
    for number in (5, 3, 4, WINDOW + 2, 2):  # 2: just outside of the window
        with pytest.raises(NotAuthentic, match="before"):
            seen.check(Stamp("a", number, NOW_MS), NOW_MS)
    seen.check(Stamp("a", 6, NOW_MS), NOW_MS)
    seen.check(Stamp("a", 10 * WINDOW, NOW_MS), NOW_MS)
    seen.check(Stamp("a", 10 * WINDOW - 1, NOW_MS), NOW_MS)
    with pytest.raises(NotAuthentic):
        seen.check(Stamp("a", 10 * WINDOW, NOW_MS), NOW_MS)


@pytest.mark.parametrize("way", [-1, 1])
def test_clocks_may_differ_so_much_and_no_more(way: int) -> None:
    SeenRequests().check(Stamp("a", 1, NOW_MS + way * CLOCK_SKEW_MS_MAX), NOW_MS)
    with pytest.raises(NotAuthentic, match="clocks"):
        SeenRequests().check(Stamp("a", 1, NOW_MS + way * (CLOCK_SKEW_MS_MAX + 1)), NOW_MS)


def test_senders_are_bounded_and_silent_ones_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_auth, "SENDERS_MAX", 2)
    seen = SeenRequests()
    seen.check(Stamp("a", 1, NOW_MS), NOW_MS)
    seen.check(Stamp("b", 1, NOW_MS), NOW_MS)
    with pytest.raises(NotAuthentic, match="2 processes"):
        seen.check(Stamp("c", 1, NOW_MS), NOW_MS)
    later = NOW_MS + 2 * CLOCK_SKEW_MS_MAX + 1
    seen.check(Stamp("c", 1, later), later)
    assert seen._senders.keys() == {"c"}


def test_a_secret_that_is_rotated_sends_with_the_new_one_and_accepts_what_it_is_told() -> None:
    old, new = b"the old secret of all", b"the new secret of all"
    secret = Secret(old)
    former = secret.current
    secret.rotate(old, new)
    assert [each.proof() for each in secret.accepted] == [Secret(old).proof(), Secret(new).proof()]
    secret.rotate(new, None)
    assert secret.current.proof() == Secret(new).proof()
    assert [each.proof() for each in secret.accepted] == [Secret(new).proof(), former.proof()]
    secret.forget_former()
    assert [each.proof() for each in secret.accepted] == [Secret(new).proof()]
    with pytest.raises(ValueError, match="at least"):
        secret.rotate(new, b"short")
    assert secret.current.proof() == Secret(new).proof(), "nothing has changed"
