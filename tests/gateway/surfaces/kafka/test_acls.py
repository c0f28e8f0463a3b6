"""gateway/surfaces/kafka/acls.py: which rules a scope is, which of them a filter names, and who may see them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.auth.access import Permission
from gateway.auth.scopes import Rights, parse_scope
from gateway.surfaces.kafka import acls as module
from gateway.surfaces.kafka.acls import bindings_of, create_acls, delete_acls, describe_acls
from gateway.surfaces.kafka.errors import CLUSTER_AUTHORIZATION_FAILED, POLICY_VIOLATION, SECURITY_DISABLED
from gateway.surfaces.kafka.schema import Message
from gateway.surfaces.kafka.session import Session

ANY, MATCH, LITERAL, PREFIXED = 1, 2, 3, 4
TOPIC, GROUP, CLUSTER = 2, 3, 4
DENY, ALLOW = 2, 3
READ, WRITE, DESCRIBE = 3, 4, 8
EVERYTHING: Message = {
    "resource_type_filter": ANY, "resource_name_filter": None, "pattern_type_filter": ANY, "principal_filter": None,
    "host_filter": None, "operation": ANY, "permission_type": ANY,
}  # fmt: skip
RULES = {
    "ann": Rights(tuple(map(parse_scope, ("send:topic:bill-*", "receive:topic:bill-1", "receive:topic:*")))),
    "*": Rights((parse_scope("describe:group:team"),), (parse_scope("receive:topic:secret"),)),
}


def _session(*, may: bool = True, is_required: bool = True) -> Session:
    authenticator = SimpleNamespace(is_required=is_required, rules=lambda: RULES.items())
    gateway = SimpleNamespace(authenticator=authenticator)
    return cast(
        Session, SimpleNamespace(gateway=gateway, may=lambda permission: may and permission is Permission.AUDIT)
    )


async def _found(**wanted: object) -> set[tuple[object, ...]]:
    answer = await describe_acls(_session(), 3, EVERYTHING | wanted)
    return {
        (one["principal"], of["resource_type"], of["resource_name"], of["pattern_type"], one["operation"],
         one["permission_type"])
        for of in answer["resources"] for one in of["acls"]
    }  # fmt: skip


@pytest.mark.parametrize(
    ("scope", "count", "first"),
    [
        ("receive:topic:orders", 1, (TOPIC, "orders", LITERAL, "User:a", READ, ALLOW)),
        ("send:topic:orders-*", 1, (TOPIC, "orders-", PREFIXED, "User:a", WRITE, ALLOW)),
        ("reader:group:*", 3, (GROUP, "*", LITERAL, "User:a", DESCRIBE, ALLOW)),
        ("audit", 1, (CLUSTER, "kafka-cluster", LITERAL, "User:a", DESCRIBE, ALLOW)),
        ("admin", 18, (TOPIC, "*", LITERAL, "User:a", DESCRIBE, ALLOW)),
    ],
)
def test_the_rules_of_a_scope(scope: str, count: int, first: tuple[object, ...]) -> None:
    made = list(bindings_of("a", parse_scope(scope), ALLOW))
    assert (len(made), made[0]) == (count, first)


PREFIX = ("User:ann", TOPIC, "bill-", PREFIXED, WRITE, ALLOW)
ONE = ("User:ann", TOPIC, "bill-1", LITERAL, READ, ALLOW)
ALL = ("User:ann", TOPIC, "*", LITERAL, READ, ALLOW)
SECRET = ("User:*", TOPIC, "secret", LITERAL, READ, DENY)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"resource_type_filter": TOPIC}, {PREFIX, ONE, ALL, SECRET}),
        ({"resource_name_filter": "bill-1", "pattern_type_filter": MATCH}, {PREFIX, ONE, ALL}),
        ({"resource_name_filter": "bill-1", "pattern_type_filter": LITERAL}, {ONE}),
        ({"resource_name_filter": "bill-1"}, {ONE}),
        ({"pattern_type_filter": PREFIXED}, {PREFIX}),
        ({"permission_type": DENY}, {SECRET}),
        ({"principal_filter": "User:ann", "operation": READ}, {ONE, ALL}),
        ({"host_filter": "10.0.0.1"}, set()),
        ({"host_filter": "*", "operation": WRITE}, {PREFIX}),
    ],
)
async def test_filters(wanted: dict[str, object], expected: set[tuple[object, ...]]) -> None:
    assert await _found(**wanted) == expected


async def test_who_is_refused_and_how(monkeypatch: pytest.MonkeyPatch) -> None:
    for session, code in (
        (_session(may=False), CLUSTER_AUTHORIZATION_FAILED),
        (_session(is_required=False), SECURITY_DISABLED),
    ):
        answers: list[Any] = [
            await describe_acls(session, 3, EVERYTHING),
            (await create_acls(session, 3, {"creations": [{}]}))["results"][0],
            (await delete_acls(session, 3, {"filters": [{}]}))["filter_results"][0],
        ]
        assert [answer["error_code"] for answer in answers] == [code] * 3
    [made] = (await create_acls(_session(), 3, {"creations": [{}]}))["results"]
    [gone] = (await delete_acls(_session(), 3, {"filters": [{}]}))["filter_results"]
    assert made["error_code"] == gone["error_code"] == POLICY_VIOLATION
    for most, is_refused in ((6, False), (5, True)):
        monkeypatch.setattr(module, "BINDINGS_MAX", most)
        answer = await describe_acls(_session(), 3, EVERYTHING)
        assert (answer.get("error_code") == POLICY_VIOLATION) is is_refused
