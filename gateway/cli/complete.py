"""Names of topics, groups, recurring schedules and contexts for the shell's completion (`mq --install-completion`).

Silent and quick: without a server, or without the right to list, there is nothing to propose.
"""

from __future__ import annotations

import asyncio
import os

import typer

from gateway.cli import context
from gateway.cli.client import connected
from gateway.cli.terminal import CliError, rows_of

TIMEOUT_S = 2.0


def topic_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Topics that begin so."""
    return _names(ctx, "/mq/v1/topics", "topics", "topic", incomplete)


def group_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups that begin so."""
    return _names(ctx, "/mq/v1/groups", "groups", "group", incomplete)


def recurring_names(ctx: typer.Context, incomplete: str) -> list[str]:
    """Recurring schedules that begin so."""
    return _names(ctx, "/mq/v1/recurring?limit=1000", "recurring", "name", incomplete)


def context_names(incomplete: str) -> list[str]:
    """Contexts that begin so."""
    try:
        known = context.read(context.contexts_file(os.environ)).contexts
    except CliError:
        return []
    return [name for name in sorted(known) if name.startswith(incomplete)]


def _names(ctx: typer.Context, path: str, rows: str, field: str, incomplete: str) -> list[str]:
    async def asked() -> dict[str, object]:
        async with connected(str(ctx.params.get("url") or ""), timeout_s=TIMEOUT_S) as client:
            return await client.get(path)

    root = ctx.find_root().params.get("context_name")
    if root:  # the line being completed begins with `mq --context NAME`
        context.choose(str(root), os.environ)
    try:
        names = [str(row[field]) for row in rows_of(asyncio.run(asked()), rows)]
    except CliError:
        return []
    return sorted(name for name in names if name.startswith(incomplete))
