"""`mq token`: make, list and revoke the tokens of a server's data directory. A running server notices within a second.

These commands work on the token file itself, so they ask for no token: a user who may write the data directory may.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from gateway.auth.tokens import TokenFileError, TokenRecord, change_tokens, mint, read_tokens
from gateway.cli.terminal import USAGE, CliError, Json, escaped, parse_duration_ms, print_json, print_note
from gateway.cli.trail import record
from store.clock import SystemClock

app = typer.Typer(help="Make, list and revoke tokens.", no_args_is_help=True)

Data = Annotated[Path | None, typer.Option(help="The server's data directory. [dim]or MQ_DATA[/dim]", file_okay=False)]
Config = Annotated[Path | None, typer.Option(help="The server's settings in TOML, when auth.token_file is in them.")]


@app.command("create")
def create(
    principal: Annotated[str, typer.Argument(help="Whom the token is for: a person or a program.", show_default=False)],
    allow: Annotated[
        list[str] | None,
        typer.Option(
            "--allow",
            "-a",
            help="A scope such as reader:topic:orders, writer:topic:bill-*, receive:group:g, admin. May be repeated.",
        ),
    ] = None,
    expires: Annotated[
        str | None, typer.Option(help="How long it is good for, such as 90d. [dim]default: for ever[/dim]")
    ] = None,
    data: Data = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a token and print it: the only time it can be seen.

    Without --allow it may do what the ACL file says about its principal.

    [b]Examples[/b]

      mq token create billing --data ./data --allow reader:topic:orders --allow 'receive:group:billing-*'
      mq token create ann --data ./data --allow admin --expires 90d
    """
    path, root = _paths(data, config)
    now_ms = SystemClock().now_ms()
    try:
        expires_ms = None if expires is None else now_ms + parse_duration_ms(expires)
        token, record = mint(principal, allow or (), now_ms=now_ms, expires_ms=expires_ms)
        change_tokens(
            path,
            lambda tokens: tokens.update({record.id: record}),
            record=lambda: _record(root, "token.create", record),
        )
    except ValueError as error:
        raise CliError(str(error), USAGE) from error
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error
    if as_json:
        print_json({**_shown(record), "token": token})
        return
    typer.echo(token)
    print_note(f"Keep it: it cannot be shown again. Its id is {record.id}; clients take it from MQ_TOKEN.")
    if not allow:
        print_note(f"It has no scopes (--allow): it may do what the rules say about {principal}, else nothing.")


@app.command("list")
def list_(data: Data = None, config: Config = None, as_json: Json = False) -> None:
    """List tokens: ids and rights, never the tokens.

    [b]Example[/b]

      mq token list --data ./data
    """
    path, _ = _paths(data, config)
    records = sorted(_read(path).values(), key=lambda record: record.created_ms)
    if as_json:
        for record in records:
            print_json(_shown(record))
        return
    if not records:
        typer.echo(f"no tokens in {path}: make one with 'mq token create NAME'")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("id", "principal", "scopes", "created", "expires"):
        table.add_column(heading, no_wrap=heading != "scopes")
    now_ms = SystemClock().now_ms()
    for record in records:
        is_over = record.expires_ms is not None and record.expires_ms <= now_ms
        expires = "never" if record.expires_ms is None else _date(record.expires_ms) + (" (over)" if is_over else "")
        texts = (record.id, record.principal, " ".join(record.scopes), _date(record.created_ms), expires)
        table.add_row(*map(escaped, texts))
    console = Console(highlight=False)
    console.print(table, width=None if console.is_terminal else 400)


@app.command("revoke")
def revoke(
    id_: Annotated[str, typer.Argument(metavar="ID", help="The id, as 'mq token list' shows it.", show_default=False)],
    data: Data = None,
    config: Config = None,
) -> None:
    """End a token at once: requests are refused and open sockets closed within seconds.

    [b]Example[/b]

      mq token revoke 4f7k2q9xw3bd2 --data ./data
    """
    path, root = _paths(data, config)
    if id_.startswith("mq_"):
        raise CliError("give the token's id, not the token: it would be seen by others on this machine", USAGE)
    revoked: list[TokenRecord] = []

    def without(tokens: dict[str, TokenRecord]) -> None:
        if id_ not in tokens:
            raise CliError(f"no token {id_} in {path}; see 'mq token list'")
        revoked.append(tokens.pop(id_))

    try:
        change_tokens(path, without, record=lambda: _record(root, "token.revoke", *revoked))
    except TokenFileError as error:
        raise CliError(f"{path}: {error}") from error
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error
    typer.echo(f"{id_} revoked")


def _record(root: Path, action: str, token: TokenRecord) -> None:
    what = {"token": token.id, "principal": token.principal}
    record(root, action, what, scopes=token.scopes, expires_ms=token.expires_ms)


def _paths(data: Path | None, config: Path | None) -> tuple[Path, Path]:
    """The token file that a server with these settings reads, and its data directory."""
    # Here, not at the top: it loads the store's settings.
    from gateway.settings.config import ConfigError, load

    try:
        settings = load(file=config, environment=os.environ, flags={"data": data})
        return settings.auth.tokens_path, settings.data
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error


def _read(path: Path) -> dict[str, TokenRecord]:
    try:
        return read_tokens(path)
    except TokenFileError as error:
        raise CliError(f"{path}: {error}") from error
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}") from error


def _shown(record: TokenRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "principal": record.principal,
        "scopes": record.scopes,
        "created_ms": record.created_ms,
        "expires_ms": record.expires_ms,
    }


def _date(time_ms: int) -> str:
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError):
        return "after 9999"
