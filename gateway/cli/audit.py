"""`mq audit`: who did what, as a server's trail has it."""

from __future__ import annotations

from typing import Annotated

import orjson
import typer

from gateway.cli.client import ask
from gateway.cli.terminal import URL_DEFAULT, Json, Url, print_json, print_table, time_shown

PATH = "/mq/v1/audit"


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
    rows, _ = ask(
        url,
        lambda client: client.listed(
            PATH, "entries", limit, principal=principal, action=action, outcome=outcome, from_=from_, to=to
        ),
    )
    if as_json:
        for row in rows:
            print_json(row)
        return
    table = []
    for row in rows:
        outcome_text = row["outcome"] if row["error_code"] is None else f"{row['outcome']} {row['error_code']}"
        details = row["details"] if row["error"] is None else {"error": row["error"]}
        table.append((
            time_shown(row["time_ms"]), row["principal"], row["action"], _plain(row["object"]), outcome_text,
            row["address"] or "-", row["request_id"] or "-", _plain(details),
        ))  # fmt: skip
    print_table(("time", "principal", "action", "object", "outcome", "address", "request", "details"), table)


def _plain(fields: object) -> str:
    assert isinstance(fields, dict)
    return " ".join(
        f"{name}={value if isinstance(value, str) else orjson.dumps(value).decode()}" for name, value in fields.items()
    )
