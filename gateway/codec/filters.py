"""Which records a reader wants: by tag, the one thing the index knows about a record besides its position.

    tag:paid                one tag
    tag:paid||refunded      any of several; "||" separates, so a tag has no "|"
    *                       every record, as without a filter

The index holds hashes; a record that comes with a wanted hash is checked against its real tag (`TagFilter.wants`).
"""

from __future__ import annotations

from typing import NamedTuple

from gateway.codec.tags import TAG_HEADER, tag_hash
from gateway.errors import RequestError
from store.limits import TAG_BYTES_MAX
from store.record_batch import Headers

FILTER_ILLEGAL = 42252
FILTER_TAGS_MAX = 64
"""Tags of one filter."""

_PREFIX = "tag:"


class TagFilter(NamedTuple):
    """The tags a reader wants, and their hashes in the index."""

    tags: frozenset[str]
    hashes: frozenset[int]

    def wants(self, headers: Headers) -> bool:
        """Whether a record with these headers has one of the tags."""
        for name, value in headers:
            if name == TAG_HEADER:
                return value is not None and value.decode("utf-8", "replace") in self.tags
        return False


def parse_filter(text: str | None) -> TagFilter | None:
    """The filter of a text; None for none, or one that lets everything pass. Raises RequestError 422/42252."""
    if text is None or text.strip() in ("", "*"):
        return None
    expression = text.strip()
    if not expression.startswith(_PREFIX):
        raise _illegal('must be "tag:" and the tags, as in "tag:paid||refunded"')
    tags = frozenset(tag.strip() for tag in expression.removeprefix(_PREFIX).split("||"))
    if len(tags) > FILTER_TAGS_MAX:
        raise _illegal(f"names {len(tags)} tags; the limit is {FILTER_TAGS_MAX}")
    for tag in tags:
        if not tag or "|" in tag or not tag.isprintable():
            raise _illegal("each tag has one or more printable characters, and no |")
        if len(tag.encode()) > TAG_BYTES_MAX:
            raise _illegal(f"a tag has at most {TAG_BYTES_MAX} bytes")
    return TagFilter(tags, frozenset(map(tag_hash, tags)))


def _illegal(rule: str) -> RequestError:
    return RequestError(FILTER_ILLEGAL, f"filter: {rule}")
