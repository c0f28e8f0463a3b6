"""gateway/auth/rules_text.py: what is written is what was asked for, and no comment is lost that need not be."""

from __future__ import annotations

from random import Random

import pytest

from gateway.auth.acl import Rule, parse_rules
from gateway.auth.rules_text import rewrite_rules

TEXT = """\
# Rules of the shop.

# billing: asked for by Ann
[[acl]]  # since 2026
principal = "billing"
allow = [
    "reader:topic:orders",  # to bill them
    # soon: "reader:topic:returns"
]
deny = []

# ---- workers

# of everybody
[[acl]]
principal = "*"   # each
deny = ["receive:topic:orders-secret"]  # never

# the end
"""
BILLING, EVERYBODY = parse_rules(TEXT)


def test_the_same_rules_are_the_same_text() -> None:
    assert rewrite_rules(TEXT, [BILLING, EVERYBODY]) == TEXT


def test_a_changed_rule_keeps_its_comments_and_the_text_of_its_other_fields() -> None:
    changed = [BILLING._replace(allow=("writer:topic:bills",)), EVERYBODY, Rule("ann", ("admin",), ())]
    text = rewrite_rules(TEXT, changed)
    assert parse_rules(text) == changed
    for kept in (
        "# billing: asked for by Ann\n[[acl]]  # since 2026\n", "# to bill them\n", '# soon: "reader:topic:returns"\n',
        "deny = []\n",
        TEXT[TEXT.index("# ---- workers") : TEXT.index("\n# the end")], "# the end\n", "# Rules of the shop.\n",
    ):  # fmt: skip
        assert kept in text
    assert text.count('allow = ["writer:topic:bills"]') == 1


def test_a_rule_that_goes_takes_the_comments_above_it_and_no_others() -> None:
    text = rewrite_rules(TEXT, [EVERYBODY])
    assert parse_rules(text) == [EVERYBODY]
    assert "Ann" not in text
    assert text.startswith("# Rules of the shop.\n")
    assert all(kept in text for kept in ("# ---- workers", "# of everybody", "# each", "# never", "# the end"))
    assert "# Rules of the shop." in rewrite_rules(TEXT, [])
    assert parse_rules(rewrite_rules(TEXT, [])) == []


def test_any_change_of_many_rules_is_written_as_asked() -> None:
    rng = Random(27)
    rules: list[Rule] = []
    text = "# the head\n"
    for step in range(300):
        rules = [rule for rule in rules if rng.random() < 0.8]
        rng.shuffle(rules)
        for _ in range(rng.randrange(3)):
            scopes = tuple(f"reader:topic:t-{rng.randrange(9)}" for _ in range(rng.randrange(3)))
            name = rng.choice(("ann", "b # ob", 'quo"te', "del\x7f", "*", "[[acl]]"))
            rules.insert(rng.randrange(len(rules) + 1), Rule(name, scopes, scopes[:1] if rng.random() < 0.3 else ()))
        text = rewrite_rules(text, rules)
        assert parse_rules(text) == rules, step
        assert text.startswith("# the head\n")
        text = text.replace("[[acl]]\n", "# note\n[[acl]]  # here\n", 1)
        assert parse_rules(text) == rules, step


@pytest.mark.parametrize(
    "text", ['acl = [{principal = "ann", allow = ["admin"]}]', '[[ "acl" ]]\nprincipal = "ann"\nallow = ["admin"]']
)
def test_an_unusual_file_is_written_anew_unless_a_comment_would_be_lost(text: str) -> None:
    rules = [*parse_rules(text), BILLING]
    assert parse_rules(rewrite_rules(text, rules)) == rules
    with pytest.raises(ValueError, match="comments that would be lost"):
        rewrite_rules("# why\n" + text, rules)
