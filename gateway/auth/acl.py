"""The ACL file: which principal may do what, beyond what its own token says. Format and parsing; pure.

    [[acl]]
    principal = "billing"                     # a token's principal, "jwt:SUBJECT", or "*" for every one
    allow = ["reader:topic:orders", "receive:group:billing-*"]
    deny = ["receive:topic:orders-secret"]    # wins, over the token's own scopes too

Several rules for one principal add up. Unknown keys are refused, so a misspelt `deny` never passes in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gateway.auth.access import Scope
from gateway.auth.operator_files import parse_toml
from gateway.auth.scopes import Rights, parse_scopes

ACL_RULES_MAX = 10_000
"""Rules of one file."""

EVERYBODY = "*"
_KEYS = frozenset(("principal", "allow", "deny"))


class Acl:
    """The rules of one file, by principal."""

    def __init__(self, rights: Mapping[str, Rights] | None = None) -> None:
        self._rights = dict(rights or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Acl) and self._rights == other._rights

    __hash__ = None  # type: ignore[assignment]

    def rules(self) -> Mapping[str, Rights]:
        """All rules, by principal; of "*", those that hold for every one."""
        return self._rights

    def rights_of(self, principal: str, scopes: Iterable[Scope] = ()) -> Rights:
        """What a principal may do that brings these scopes of its own."""
        own = self._rights.get(principal, Rights())
        all_ = self._rights.get(EVERYBODY, Rights())
        return Rights((*scopes, *own.allow, *all_.allow), (*own.deny, *all_.deny))


class Rule(NamedTuple):
    """One rule as it is written."""

    principal: str
    allow: tuple[str, ...]
    deny: tuple[str, ...]


def parse_acl(text: str) -> Acl:
    """The rules of a file's text. Raises ValueError, which names the rule by its number."""
    rights: dict[str, Rights] = {}
    for rule in parse_rules(text):
        known = rights.get(rule.principal, Rights())
        rights[rule.principal] = Rights(
            (*known.allow, *parse_scopes(rule.allow)), (*known.deny, *parse_scopes(rule.deny))
        )
    return Acl(rights)


def parse_rules(text: str) -> list[Rule]:
    """The rules of a file's text one by one, in its order. Raises ValueError, which names the rule by its number."""
    document = parse_toml(text)
    rules = document.pop("acl", [])
    if document:
        raise ValueError(f"unknown key: {', '.join(sorted(document))}; the file holds [[acl]] tables")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ValueError("acl: write [[acl]], once for each rule")
    if len(rules) > ACL_RULES_MAX:
        raise ValueError(f"more than {ACL_RULES_MAX} rules")
    found: list[Rule] = []
    for number, rule in enumerate(rules, 1):
        if unknown := rule.keys() - _KEYS:
            raise ValueError(f"rule {number}: unknown key: {', '.join(sorted(unknown))}")
        principal = rule.get("principal")
        if not isinstance(principal, str) or not principal:
            raise ValueError(f'rule {number}: principal must be a name, or "*"')
        try:
            allow, deny = (_list(rule.get(key, [])) for key in ("allow", "deny"))
            parse_scopes(allow), parse_scopes(deny)
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from error
        found.append(Rule(principal, tuple(map(str, allow)), tuple(map(str, deny))))
    return found


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("allow and deny are lists of scopes")
    return value
