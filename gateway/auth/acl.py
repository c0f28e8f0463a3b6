"""The ACL file: which principal may do what, beyond what its own token says. Format and parsing; pure.

    [[acl]]
    principal = "billing"                     # a token's principal, "jwt:SUBJECT", or "*" for every one
    allow = ["reader:topic:orders", "receive:group:billing-*"]
    deny = ["receive:topic:orders-secret"]    # wins, over the token's own scopes too

Several rules for one principal add up. Unknown keys are refused, so a misspelt `deny` never passes in silence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gateway.auth.operator_files import parse_toml
from gateway.auth.scopes import Rights, Scope, parse_scopes

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


def parse_acl(text: str) -> Acl:
    """The rules of a file's text. Raises ValueError, which names the rule by its number."""
    document = parse_toml(text)
    rules = document.pop("acl", [])
    if document:
        raise ValueError(f"unknown key: {', '.join(sorted(document))}; the file holds [[acl]] tables")
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise ValueError("acl: write [[acl]], once for each rule")
    if len(rules) > ACL_RULES_MAX:
        raise ValueError(f"more than {ACL_RULES_MAX} rules")
    rights: dict[str, Rights] = {}
    for number, rule in enumerate(rules, 1):
        if unknown := rule.keys() - _KEYS:
            raise ValueError(f"rule {number}: unknown key: {', '.join(sorted(unknown))}")
        principal = rule.get("principal")
        if not isinstance(principal, str) or not principal:
            raise ValueError(f'rule {number}: principal must be a name, or "*"')
        try:
            allow, deny = (parse_scopes(_list(rule.get(key, []))) for key in ("allow", "deny"))
        except ValueError as error:
            raise ValueError(f"rule {number}: {error}") from error
        known = rights.get(principal, Rights())
        rights[principal] = Rights((*known.allow, *allow), (*known.deny, *deny))
    return Acl(rights)


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise ValueError("allow and deny are lists of scopes")
    return value
