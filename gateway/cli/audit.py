"""`mq audit`: who did what, as a server's trail has it."""

from __future__ import annotations

import asyncio
import sys
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import urlencode

import orjson
import typer
from rich.console import Console
from rich.table import Table

from gateway.cli.client import connected
from gateway.cli.terminal import URL_DEFAULT, CliError, Json, Url, escaped, print_json

PATH = "/mq/v1/audit"
_PAGE = 1000
_PIPED_WIDTH = 400  # piped output has no width: let lines be as long as they are


def audit(
    principal: Annotated[str | None, typer.Option(help="Only what this principal did.")] = None,
    action: Annotated[
        str | None, typer.Option(help="Only this action (topic.delete), or kind of action (topic).")
    ] = None,
    outcome: Annotated[str | None, typer.Option(help="Only done, refused, failed or unknown.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="From this time on (RFC 3339 or epoch ms).")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Before this time.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 100,
    url: Url = URL_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show who created, changed, deleted or reset what, the newest first. Needs the scope audit, or admin.

    [b]Examples[/b]

      mq audit --action topic.delete --from 2026-12-24T00:00:00Z

      mq audit --principal ann --json | jq .object
    """
    asked = {"principal": principal, "action": action, "outcome": outcome, "from": from_, "to": to}
    rows = asyncio.run(_listed(url, {name: text for name, text in asked.items() if text is not None}, limit))
    if as_json:
        for row in rows:
            print_json(row)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("time", "principal", "action", "object", "outcome", "address", "request", "details"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        outcome_text = row["outcome"] if row["error_code"] is None else f"{row['outcome']} {row['error_code']}"
        details = row["details"] if row["error"] is None else {"error": row["error"]}
        cells = (
            _time(row["time_ms"]), row["principal"], row["action"], _plain(row["object"]), outcome_text,
            row["address"] or "-", row["request_id"] or "-", _plain(details),
        )  # fmt: skip
        table.add_row(*(escaped(str(cell)) for cell in cells))
    Console(highlight=False, width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


async def _listed(url: str, asked: dict[str, str], limit: int) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    cursor: object = None
    async with connected(url) as client:
        while len(rows) < limit:
            query = {**asked, "limit": str(min(_PAGE, limit - len(rows)))}
            page = await client.get(
                f"{PATH}?{urlencode(query if cursor is None else {**query, 'cursor': str(cursor)})}"
            )
            found = page.get("entries")
            if not isinstance(found, list):
                raise CliError("the server's answer has no entries; is it an mq server of this version?")
            rows += found
            cursor = page.get("next_cursor")
            if cursor is None:
                break
    return rows


def _plain(fields: object) -> str:
    assert isinstance(fields, dict)
    return " ".join(
        f"{name}={value if isinstance(value, str) else orjson.dumps(value).decode()}" for name, value in fields.items()
    )


def _time(time_ms: object) -> str:
    assert isinstance(time_ms, int)
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
