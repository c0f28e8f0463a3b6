"""Which topics a member wants: by name, by a pattern over names, or both.

A pattern is a regular expression over whole names, cut down so that no pattern can hold up the server: the time of
Python's matcher is exponential in groups that repeat, and n^k for k repetitions. Allowed are at most three of `* + ? {`
and `(` in total, no repetition of a group, no back reference or look-around. `orders-(eu|us)-.*` is fine.

System topics (`__…`, `%RETRY%…`, `%DLQ%…`) are found by name only, never by pattern. Nor does a pattern find a topic
that is not `visible` to its member: what it matches tells nothing of topics that the member may not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gateway.groups.machines.errors import IllegalRequest
from store.limits import TOPIC_NAME_BYTES_MAX
from store.topics import RESERVED_PREFIXES

TOPICS_MAX = 1000
"""Topics one member may name."""

Visible = tuple[tuple[str, ...], tuple[str, ...]]
"""Topics, as patterns: names, or beginnings of names with a "*" behind them, and those of them that are not meant."""

VISIBLE_BYTES_MAX = 64 * 1024
"""Of the patterns of one `Visible`: they are kept with the member."""

_REPEATS_MAX = 3
_ESCAPED = re.compile(r"\\[^A-Za-z0-9]|\\[dDwWsS]|\[[^\]\\\[]+\]")
"""What stands for single characters whatever is in it: an escaped punctuation mark, a class, a simple set."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Topics of one member. Raises IllegalRequest when it names nothing, too much, or a pattern that is not allowed."""

    topics: frozenset[str] = frozenset()
    pattern: str | None = None
    visible: Visible | None = None
    """What the pattern may find; None: every topic."""

    _compiled: re.Pattern[str] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.topics and self.pattern is None:
            raise IllegalRequest("a subscription names topics or a pattern")
        if len(self.topics) > TOPICS_MAX:
            raise IllegalRequest(f"a subscription names at most {TOPICS_MAX} topics")
        if any(len(topic.encode()) > TOPIC_NAME_BYTES_MAX for topic in self.topics):
            raise IllegalRequest(f"a topic name has at most {TOPIC_NAME_BYTES_MAX} bytes")
        if self.visible is not None and sum(map(len, (*self.visible[0], *self.visible[1]))) > VISIBLE_BYTES_MAX:
            raise IllegalRequest("the rights of this member are too many for a pattern: subscribe to topics by name")
        object.__setattr__(self, "_compiled", None if self.pattern is None else _compile(self.pattern))

    def matches(self, topic: str) -> bool:
        """Whether the member wants this topic."""
        if topic in self.topics:
            return True
        if self._compiled is None or topic.startswith(RESERVED_PREFIXES):
            return False
        return self._compiled.fullmatch(topic) is not None and (self.visible is None or _shows(self.visible, topic))


def _shows(visible: Visible, topic: str) -> bool:
    allowed, denied = (
        any(topic.startswith(one[:-1]) if one.endswith("*") else topic == one for one in patterns)
        for patterns in visible
    )
    return allowed and not denied


def _compile(pattern: str) -> re.Pattern[str]:
    if len(pattern) > TOPIC_NAME_BYTES_MAX:
        raise IllegalRequest(f"a pattern has at most {TOPIC_NAME_BYTES_MAX} characters")
    bare = _ESCAPED.sub("x", pattern)
    repeats_group = re.search(r"\)[*+?{]", bare)
    if sum(bare.count(sign) for sign in "*+?{(") > _REPEATS_MAX or repeats_group or "(?" in bare or "\\" in bare:
        raise IllegalRequest(
            f"a pattern has at most {_REPEATS_MAX} of * + ? {{ and (, repeats no group, and has no \\ before letters "
            f"but d, w and s: {pattern!r}"
        )
    try:
        return re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise IllegalRequest(f"not a pattern: {pattern!r} ({error})") from error
