"""The text of a rules file with other rules: what its writer wrote stays, comments included. Pure.

A rule that stays keeps its text as it is; one that changes keeps the text of what does not change in it, and all of its
comments. A rule is taken as changed from one of the same principal that is there no more.

    # the shop and its workers        free: stays whatever becomes of the rules

    # asked for by Ann, 2026-03       goes with the rule below it
    [[acl]]
    principal = "billing"
    allow = ["reader:topic:orders"]   # its field's
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gateway.auth.acl import Rule, parse_rules

_HEADER = re.compile(r"\s*\[\[\s*acl\s*\]\]\s*(#.*)?$")
_FIELD = re.compile(r"\s*(principal|allow|deny)\s*=")
_COMMENT = re.compile(r"""(?:"(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[^"'#\n])*(#[^\n]*)?""")


class _Written(NamedTuple):
    """A rule as it stands in the file, and the free lines above it."""

    free: list[str]
    lines: list[str]
    rule: Rule


def rewrite_rules(text: str, rules: Sequence[Rule]) -> str:
    """A file's text with these rules instead of its own. Raises ValueError when it has comments that cannot be kept,
    as it is written in an unusual way."""
    written, tail = _split(text)
    if [each.rule for each in written] == parse_rules(text):
        rewritten = "".join(line + "\n" for line in _joined(written, tail, rules))
        if parse_rules(rewritten) == list(rules):
            return rewritten
    if "#" in text:
        raise ValueError(
            "the rules file has comments that would be lost: write it as [[acl]] tables, or edit it by hand"
        )
    return "".join(line + "\n" for line in _joined([], [], rules))


def _split(text: str) -> tuple[list[_Written], list[str]]:
    """The rules of a text with their lines, and the lines behind the last one."""
    written: list[_Written] = []
    above: list[str] = []  # blank lines and comments since the last rule
    lines: list[str] = []
    free: list[str] = []

    def end() -> None:
        try:
            (rule,) = parse_rules("\n".join(lines))
        except ValueError:
            rule = Rule("", (), ())
        written.append(_Written(free, lines, rule))

    for line in text.splitlines():
        if _HEADER.match(line):
            if lines:
                end()
            blank = max((number + 1 for number, each in enumerate(above) if not each.strip()), default=0)
            free, lines, above = above[:blank], [*above[blank:], line], []
        elif not line.strip() or line.lstrip().startswith("#"):
            above.append(line)
        elif lines:
            lines += [*above, line]
            above = []
        else:
            above.append(line)
    if lines:
        end()
    return written, above


def _joined(written: Sequence[_Written], tail: Iterable[str], rules: Sequence[Rule]) -> list[str]:
    sources = _sources([each.rule for each in written], rules)
    head, tail = (written[0].free, tail) if written else (tail, [])
    lines = [*head]
    shown = 1  # the free lines of so many are there
    for rule, source in zip(rules, sources, strict=True):
        if source is not None:
            for each in written[shown : source + 1]:
                lines += each.free
            shown = max(shown, source + 1)
            lines += written[source].lines if written[source].rule == rule else _changed(written[source], rule)
        else:
            if lines and lines[-1].strip():
                lines.append("")
            lines += ["[[acl]]", *_fields(rule).values()]
    for each in written[shown:]:
        lines += each.free
    return [*lines, *tail]


def _sources(before: Sequence[Rule], after: Sequence[Rule]) -> list[int | None]:
    """Which of the old rules each new one is, or was; None: it is new."""
    sources: list[int | None] = [None] * len(after)
    left: dict[Rule | str, list[int]] = {}
    for number in reversed(range(len(before))):
        left.setdefault(before[number], []).append(number)
    for number, rule in enumerate(after):
        if left.get(rule):
            sources[number] = left[rule].pop()
    for number in sorted((number for some in left.values() for number in some), reverse=True):
        left.setdefault(before[number].principal, []).append(number)
    for number, rule in enumerate(after):
        if sources[number] is None and left.get(rule.principal):
            sources[number] = left[rule.principal].pop()
    return sources


def _changed(written: _Written, rule: Rule) -> list[str]:
    """The lines of a rule that has become another one."""
    fields = _fields(rule)
    old = _fields(written.rule)
    parts: list[tuple[str, list[str]]] = [("", [])]
    for line in written.lines:
        if found := _FIELD.match(line):
            parts.append((found[1], []))
        parts[-1][1].append(line)
    lines: list[str] = []
    for name, part in parts:
        if not name or fields.get(name) == old.get(name):
            lines += part
        else:
            lines += [comment for line in part if (comment := _comment_of(line))]
            lines += [fields[name]] if name in fields else []
        fields.pop(name, None)
    return [*lines, *fields.values()]


def _comment_of(line: str) -> str | None:
    found = _COMMENT.match(line)
    return None if found is None else found[1]


def _fields(rule: Rule) -> dict[str, str]:
    """A line for each field. A text in JSON is one in TOML, but for the character DEL."""
    fields = {"principal": f"principal = {_text(rule.principal)}"}
    for name, scopes in (("allow", rule.allow), ("deny", rule.deny)):
        if scopes:
            fields[name] = f"{name} = [{', '.join(map(_text, scopes))}]"
    return fields


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
