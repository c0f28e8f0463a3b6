"""`mq context`: servers by name, with what it takes to use them, instead of typed URLs and tokens.

They are in `mq/contexts.json` below XDG_CONFIG_HOME (`~/.config`), which only its owner may read: it holds tokens, in
clear. Each change replaces the file as a whole, so a crash leaves the old one or the new one. What a context says comes
last: a flag goes before an environment variable, and that before the context. A context's token is sent to its own URL
and to no other.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.terminal import USAGE, CliError, Json, print_json, print_note, print_table

app = typer.Typer(help="Servers by name: add, list, use and remove contexts.", no_args_is_help=True)

VARIABLE = "MQ_CONTEXT"
URL_DEFAULT = "http://127.0.0.1:8082"
_FILE_BYTES_MAX = 1_000_000


class Context(msgspec.Struct, frozen=True, omit_defaults=True):
    """One server. `token` and `ca` (a file) None: none is needed."""

    url: str
    token: str | None = None
    ca: str | None = None


class Contexts(msgspec.Struct, omit_defaults=True):
    """All that are known. `current`: the one in use when nothing else is said."""

    current: str | None = None
    contexts: dict[str, Context] = msgspec.field(default_factory=dict)


def contexts_file(environment: Mapping[str, str]) -> Path:
    """Where they are kept."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mq" / "contexts.json"


def read(file: Path) -> Contexts:
    """Those in the file; none without one. Raises CliError: it is damaged, or others may read it."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(_FILE_BYTES_MAX)
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}", USAGE) from error
    if stat.S_IMODE(mode) & 0o077:
        raise CliError(f"{file} holds tokens and can be read by others: chmod 600 {file}", USAGE)
    try:
        return msgspec.json.decode(content, type=Contexts)
    except msgspec.DecodeError as error:
        raise CliError(f"{file} is no file of contexts ({error}): correct or remove it", USAGE) from error


def write(file: Path, contexts: Contexts) -> None:
    """Replace the file. Raises CliError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)  # made for its owner alone, 0600
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(msgspec.json.format(msgspec.json.encode(contexts), indent=2) + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(name, file)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CliError(f"{file}: {error.strerror}") from error


def selected(environment: Mapping[str, str]) -> Context | None:
    """The context of MQ_CONTEXT (`mq --context`), else the current one, if there is one. Raises CliError."""
    name = environment.get(VARIABLE, "")
    contexts = read(contexts_file(environment))
    name = name or contexts.current or ""
    return _named(contexts, name) if name else None


def choose(name: str, environment: MutableMapping[str, str]) -> None:
    """Use this context for one command (`mq --context`): a flag, so it goes before the variables."""
    for variable in ("MQ_URL", "MQ_TOKEN", "MQ_CA"):
        environment.pop(variable, None)
    environment[VARIABLE] = name


def _named(contexts: Contexts, name: str) -> Context:
    try:
        return contexts.contexts[name]
    except KeyError:
        known = ", ".join(sorted(contexts.contexts)) or "none"
        raise CliError(
            f"no context {name} (known: {known}): 'mq context add {name} --url URL' makes it", USAGE
        ) from None


Name = Annotated[str, typer.Argument(help="The context's name.", show_default=False)]


@app.command("add")
def add(
    name: Name,
    url: Annotated[str, typer.Option("--url", help="The server.", show_default=False)],
    token: Annotated[
        str | None,
        typer.Option(
            help="Its token; [b]-[/b] asks for it, or reads it from stdin, which keeps it out of the history."
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="Certificates (PEM) to trust, when the server's is no public one.", exists=True)
    ] = None,
) -> None:
    """Add a context, or replace the one of that name. The first one is used at once.

    [b]Examples[/b]

      mq context add prod --url https://mq.example.org --token -
      mq context add here --url http://127.0.0.1:8082
    """
    # Here, not at the top: the client imports this module.
    from gateway.cli.client import checked_url

    if not name.isprintable() or not name.strip() or name != name.strip():
        raise CliError("a context needs a name of printable characters", USAGE)
    if token == "-":
        token = typer.prompt("Token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    elif token:
        print_note("A token on the command line is in the shell's history: --token - asks for it.")
    token = (token or "").strip() or None
    file = contexts_file(os.environ)
    contexts = read(file)
    contexts.contexts[name] = Context(checked_url(url), token, None if ca is None else str(ca.absolute()))
    contexts.current = contexts.current or name
    write(file, contexts)
    typer.echo(f"{name} added" + (", and used from now on" if contexts.current == name else ""))


@app.command("list")
def list_(as_json: Json = False) -> None:
    """List the contexts; the one in use has a star. Tokens are not shown.

    [b]Example[/b]

      mq context list
    """
    contexts = read(contexts_file(os.environ))
    current = os.environ.get(VARIABLE) or contexts.current
    rows = [
        {"context": name, "current": name == current, "url": one.url, "has_token": one.token is not None, "ca": one.ca}
        for name, one in sorted(contexts.contexts.items())
    ]
    if as_json:
        for row in rows:
            print_json(row)
    elif rows:
        cells = [
            (
                "*" if row["current"] else "",
                row["context"],
                row["url"],
                "yes" if row["has_token"] else "-",
                row["ca"] or "-",
            )
            for row in rows
        ]
        print_table(("", "context", "url", "token", "ca"), cells)
    else:
        typer.echo("no contexts yet: 'mq context add NAME --url URL' adds one")


@app.command("use")
def use(name: Name) -> None:
    """Use a context from now on, wherever no flag or variable says otherwise.

    [b]Example[/b]

      mq context use prod
    """
    file = contexts_file(os.environ)
    contexts = read(file)
    url = _named(contexts, name).url
    contexts.current = name
    write(file, contexts)
    typer.echo(f"{name} is used from now on: {url}")


@app.command("remove")
def remove(name: Name) -> None:
    """Forget a context and its token.

    [b]Example[/b]

      mq context remove prod
    """
    file = contexts_file(os.environ)
    contexts = read(file)
    _named(contexts, name)
    del contexts.contexts[name]
    if contexts.current == name:
        contexts.current = None
    write(file, contexts)
    typer.echo(f"{name} removed")
