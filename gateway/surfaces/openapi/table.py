"""docs/routes.md: every route in a line, for people who look for one. `make routes` writes it, a test compares."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.surfaces.openapi.document import KAFKA_PREFIX, Route, words_of
from gateway.surfaces.openapi.operations import OPERATIONS, TAGS

_HEAD = """\
# Every route

In the order of a server's own `/docs`. What each takes and answers, to the last field and error, is there and in
`/openapi.json`; the [HTTP guide](http.md) has examples. Everything below `/v3` is below `/kafka/v3` too. `make routes`
writes this page.
"""


def routes_page(routes: Sequence[Route]) -> str:
    """The page."""
    parts = [_HEAD]
    for tag, description in TAGS.items():
        parts.append(f"\n## {tag}\n\n{description}\n\n| route | right | |\n|---|---|---|\n")
        for route in routes:
            if OPERATIONS[route.name].tag == tag and not route.path.startswith(KAFKA_PREFIX):
                summary, _ = words_of(route)
                parts.append(f"| `{route.method} {route.path}` | {route.permission.value} | {summary} |\n")
    return "".join(parts)
