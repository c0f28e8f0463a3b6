"""gateway/auth/acl.py"""

from __future__ import annotations

import pytest

from gateway.auth.access import Permission
from gateway.auth.acl import ACL_RULES_MAX, parse_acl
from gateway.auth.scopes import parse_scopes

TEXT = """
[[acl]]
principal = "billing"
allow = ["reader:topic:orders"]

[[acl]]
principal = "billing"
allow = ["receive:group:billing-*"]
deny = ["receive:topic:secret"]

[[acl]]
principal = "*"
allow = ["describe:topic:public-*"]
"""


def test_the_rules_of_a_principal_and_of_everybody_add_up() -> None:
    acl = parse_acl(TEXT)
    billing = acl.rights_of("billing")
    assert billing.allows(Permission.RECEIVE, "orders", "billing-1")
    assert billing.allows(Permission.DESCRIBE, "public-news", None)
    other = acl.rights_of("other")
    assert other.allows(Permission.DESCRIBE, "public-news", None)
    assert not other.allows(Permission.RECEIVE, "orders", None)


def test_a_rule_denies_what_the_token_itself_allows() -> None:
    own = parse_scopes(["reader:topic:*"])
    rights = parse_acl(TEXT).rights_of("billing", own)
    assert rights.allows(Permission.RECEIVE, "anything", None)
    assert not rights.allows(Permission.RECEIVE, "secret", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[acl]]\nprincipal = 'a'\nalow = []", "rule 1: unknown key: alow"),
        ("[[acl]]\nallow = []", "rule 1: principal"),
        ("[[acl]]\nprincipal = ''", "rule 1: principal"),
        ("[[acl]]\nprincipal = 'a'\n[[acl]]\nprincipal = 'a'\nallow = ['x']", "rule 2: scope 'x'"),
        ("[[acl]]\nprincipal = 'a'\nallow = 'admin'", "rule 1: allow and deny are lists"),
        ("[acl]\nprincipal = 'a'", "write \\[\\[acl\\]\\]"),
        ("[[rules]]\n", "unknown key: rules"),
        ("[[acl", "Expected"),
    ],
)
def test_a_file_with_a_mistake_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_acl(text)


def test_the_number_of_rules_has_a_limit() -> None:
    rule = "[[acl]]\nprincipal = 'a'\n"
    parse_acl(rule * ACL_RULES_MAX)
    with pytest.raises(ValueError, match=str(ACL_RULES_MAX)):
        parse_acl(rule * (ACL_RULES_MAX + 1))
