"""gateway/auth/authenticator.py"""

from __future__ import annotations

import base64
import logging
from dataclasses import replace

import pytest
from aiohttp.test_utils import make_mocked_request

from gateway.auth.access import NOBODY, OPEN, Access, Permission
from gateway.auth.acl import parse_acl
from gateway.auth.authenticator import ANSWERS_MAX, CACHE_MAX, Anybody, PolicyAuthenticator
from gateway.auth.backoff import FIRST_WAIT_MS, FREE_FAILURES
from gateway.auth.policy import Policy
from gateway.auth.tokens import mint
from gateway.errors import RequestError
from tests.clock import START_MS, FakeClock
from tests.gateway.auth.test_jwt import SECRET, checker, signed
from tests.gateway.security.kit import policy_of

ADDRESS = "192.0.2.1"


def made(*scopes: str, expires_ms: int | None = None) -> tuple[str, PolicyAuthenticator, FakeClock]:
    token, record = mint("billing", scopes, now_ms=START_MS - 1, expires_ms=expires_ms)
    clock = FakeClock()
    return token, PolicyAuthenticator(policy_of([record]), clock=clock, now_ms=clock.now_ms), clock


def refused(authenticator: PolicyAuthenticator, token: str) -> RequestError:
    with pytest.raises(RequestError) as refusal:
        authenticator.access_of_token(token, ADDRESS)
    assert token not in str(refusal.value.body())
    return refusal.value


def test_a_token_gives_its_rights() -> None:
    token, authenticator, _ = made("reader:topic:orders")
    access = authenticator.access_of_token(token, ADDRESS)
    assert access.principal == "billing"
    assert access.expires_at_ms is None
    access.check(Permission.RECEIVE, topic="orders")
    with pytest.raises(RequestError) as refusal:
        access.check(Permission.SEND, topic="orders")
    assert refusal.value.error_code == 40301
    assert "send" in refusal.value.message
    assert "orders" in refusal.value.message
    assert authenticator.access_of_token(token, ADDRESS) is access


def test_what_is_wrong_is_refused_and_never_repeated(caplog: pytest.LogCaptureFixture) -> None:
    token, authenticator, _ = made("admin")
    with caplog.at_level(logging.DEBUG):
        for wrong in (token[:-2] + "zz", "mq_abc_def", "secret-secret", "a.b.c"):
            error = refused(authenticator, wrong)
            assert error.error_code == 40101
            assert wrong not in caplog.text
    assert authenticator.failure_count == 4
    assert caplog.text.count("authentication failed") == 1  # one line, not four


def test_a_token_ends_when_it_expires() -> None:
    token, authenticator, clock = made("admin", expires_ms=START_MS + 1000)
    access = authenticator.access_of_token(token, ADDRESS)
    clock.step(999)
    assert access.allows(Permission.OPERATE)
    clock.step(1)
    assert not access.allows(Permission.OPERATE)
    assert not access.allows(Permission.SOCKET)
    assert refused(authenticator, token).error_code == 40101


def test_a_revoked_token_ends_at_the_next_question_and_whoever_watches_is_told() -> None:
    token, authenticator, _ = made("admin")
    access = authenticator.access_of_token(token, ADDRESS)
    told: list[str] = []
    access.watch(lambda: told.append("first"))
    stop = access.watch(lambda: told.append("second"))
    authenticator.replace(policy_of([mint("other", [], now_ms=START_MS)[1]]))
    assert told == ["first", "second"]
    assert not access.allows(Permission.DESCRIBE, topic="orders")
    assert refused(authenticator, token).error_code == 40101
    access.watch(lambda: told.append("late"))
    assert told[2:] == ["late"]
    stop()
    authenticator.replace(Policy())
    assert len(told) == 3


def test_a_token_whose_record_says_otherwise_is_another_one_and_what_it_grants_may_change() -> None:
    token, record = mint("billing", ["reader:topic:orders"], now_ms=START_MS - 1)
    clock = FakeClock()
    authenticator = PolicyAuthenticator(policy_of([record]), clock=clock, now_ms=clock.now_ms)
    access = authenticator.access_of_token(token, ADDRESS)
    authenticator.replace(policy_of([replace(record, scopes=("writer:topic:orders",))]))
    assert access.allows(Permission.SEND, topic="orders")
    told: list[str] = []
    access.watch(lambda: told.append("over"))
    authenticator.replace(policy_of([replace(record, expires_ms=START_MS + 1)]))
    assert told == ["over"]
    assert not access.allows(Permission.RECEIVE, topic="orders")
    again = authenticator.access_of_token(token, ADDRESS)
    assert again.allows(Permission.RECEIVE, topic="orders")
    clock.step(1)
    assert not again.allows(Permission.RECEIVE, topic="orders")
    authenticator.replace(policy_of([replace(record, sha256="0" * 64)]))
    assert refused(authenticator, token).error_code == 40101


def test_who_stopped_watching_is_not_told() -> None:
    token, authenticator, _ = made("admin")
    told: list[str] = []
    access = authenticator.access_of_token(token, ADDRESS)
    stop = access.watch(lambda: told.append("no"))
    stop()
    stop()
    authenticator.replace(Policy())
    assert told == []


def test_changed_rules_hold_for_callers_that_are_known() -> None:
    token, authenticator, _ = made("reader:topic:orders")
    access = authenticator.access_of_token(token, ADDRESS)
    assert access.allows(Permission.RECEIVE, topic="orders")
    policy = authenticator._policy
    acl = parse_acl('[[acl]]\nprincipal = "billing"\nallow = ["send:topic:a"]\ndeny = ["receive:topic:orders"]')
    authenticator.replace(Policy(tokens=policy.tokens, scopes=policy.scopes, acl=acl))
    assert not access.allows(Permission.RECEIVE, topic="orders")
    assert access.allows(Permission.SEND, topic="a")


def test_a_jwt_ends_with_its_key() -> None:
    clock = FakeClock()
    authenticator = PolicyAuthenticator(Policy(jwt=checker("HS256", SECRET)), clock=clock, now_ms=clock.now_ms)
    access = authenticator.access_of_token(signed(scope="mq:reader:topic:orders"), ADDRESS)
    assert access.principal == "jwt:ann"
    assert access.allows(Permission.RECEIVE, topic="orders")
    assert not access.allows(Permission.RECEIVE, topic="other")
    assert access.expires_at_ms is not None
    authenticator.replace(Policy(jwt=checker("HS256", SECRET[::-1])))
    assert not access.allows(Permission.RECEIVE, topic="orders")


def test_an_address_that_keeps_failing_has_to_wait_but_a_good_token_passes() -> None:
    token, authenticator, clock = made("admin")
    for _ in range(FREE_FAILURES + 1):
        assert refused(authenticator, "mq_a_b").error_code == 40101
    error = refused(authenticator, "mq_a_b")
    assert (error.error_code, error.retriable) == (42901, True)
    assert error.retry_after_ms == FIRST_WAIT_MS
    assert authenticator.access_of_token(token, ADDRESS).allows(Permission.OPERATE)
    clock.step(10 * FIRST_WAIT_MS)
    assert refused(authenticator, "mq_a_b").error_code == 40101


def test_no_signature_is_checked_for_an_address_that_has_to_wait() -> None:
    clock = FakeClock()
    authenticator = PolicyAuthenticator(Policy(jwt=checker("HS256", SECRET)), clock=clock, now_ms=clock.now_ms)
    for _ in range(FREE_FAILURES + 1):
        refused(authenticator, "a.b.c")
    assert refused(authenticator, signed()).error_code == 42901
    clock.step(10 * FIRST_WAIT_MS)
    assert authenticator.access_of_token(signed(), ADDRESS).principal == "jwt:ann"


def request_access(authenticator: PolicyAuthenticator, method: str = "GET", path: str = "/", **headers: str) -> Access:
    return authenticator.access_of_request(
        make_mocked_request(method, path, {name.replace("_", "-"): value for name, value in headers.items()})
    )


def test_requests_say_who_they_are_in_several_ways() -> None:
    token, authenticator, _ = made("admin")
    access = authenticator.access_of_token(token, ADDRESS)
    _, id_, secret = token.split("_", 2)
    basic = base64.b64encode(f"{id_}:{secret}".encode()).decode()
    bearer = base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")
    for headers in (
        {"Authorization": f"Bearer {token}"},
        {"Authorization": f"Basic {basic}"},
        {"X_Api_Key": token},
        {"Sec_WebSocket_Protocol": f"mq.v1.json, mq.bearer.{bearer}"},
    ):
        # The whole token as a password is another text, so another entry: the principal is what counts.
        assert request_access(authenticator, **headers).principal == access.principal
    assert request_access(authenticator) is NOBODY
    assert request_access(authenticator, path=f"/?token={token}") is NOBODY


def test_a_ticket_is_good_for_one_get() -> None:
    token, authenticator, _ = made("admin")
    access = authenticator.access_of_token(token, ADDRESS)
    ticket = authenticator.issue_ticket(access)
    assert request_access(authenticator, "POST", f"/?ticket={ticket}") is NOBODY
    assert request_access(authenticator, path=f"/?ticket={ticket}") is access
    with pytest.raises(RequestError, match="ticket"):
        request_access(authenticator, path=f"/?ticket={ticket}")


def test_a_ticket_of_another_node_is_refused_with_its_name_and_costs_nothing() -> None:
    token, record = mint("billing", ["admin"], now_ms=START_MS - 1)
    clock = FakeClock()
    one, other = (
        PolicyAuthenticator(policy_of([record]), clock=clock, now_ms=clock.now_ms, node=node) for node in ("n1", "n2")
    )
    access = one.access_of_token(token, ADDRESS)
    ticket = one.issue_ticket(access)
    for sent in ({"path": f"/?ticket={ticket}"}, {"Sec_WebSocket_Protocol": f"mq.v1.json, mq.ticket.{ticket}"}):
        with pytest.raises(RequestError, match="is of node n1") as refusal:
            request_access(other, **sent)
        assert refusal.value.error_code == 40965
        assert ticket not in refusal.value.message
    assert other.failure_count == 0
    assert request_access(one, path=f"/?ticket={ticket}") is access


def test_what_is_remembered_is_bounded() -> None:
    records = [mint("p", ["admin"], now_ms=START_MS) for _ in range(CACHE_MAX + 1)]
    clock = FakeClock()
    authenticator = PolicyAuthenticator(policy_of([r for _, r in records[:9_999]]), clock=clock, now_ms=clock.now_ms)
    authenticator._policy = policy_of([record for _, record in records])
    first = authenticator.access_of_token(records[0][0], ADDRESS)
    for token, _ in records[1:CACHE_MAX]:
        authenticator.access_of_token(token, ADDRESS)
    assert authenticator.access_of_token(records[0][0], ADDRESS) is first
    authenticator.access_of_token(records[CACHE_MAX][0], ADDRESS)
    assert authenticator.access_of_token(records[0][0], ADDRESS) is not first
    for number in range(ANSWERS_MAX + 1):
        first.allows(Permission.SEND, topic=str(number))
    assert len(first._answers) == 1  # type: ignore[attr-defined]


def test_without_authentication_everybody_may_do_everything() -> None:
    anybody = Anybody()
    assert not anybody.is_required
    assert anybody.access_of_token("x", ADDRESS) is OPEN
    assert anybody.access_of_request(make_mocked_request("GET", "/", {"Authorization": "nonsense"})) is OPEN
    OPEN.check(Permission.OPERATE)
    assert not NOBODY.allows(Permission.PUBLIC)
    with pytest.raises(RequestError):
        NOBODY.check(Permission.DESCRIBE)
