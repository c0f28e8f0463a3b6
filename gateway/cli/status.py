"""`mq status`: whether a server takes requests, and what it holds, at a glance."""

from __future__ import annotations

import time
from collections.abc import Mapping

import typer

from gateway.cli.client import Client, ask, server_of
from gateway.cli.terminal import (
    REFUSED,
    URL_DEFAULT,
    CliError,
    Json,
    Url,
    number_of,
    print_error,
    print_json,
    print_table,
    rows_of,
)

STARTING = 503


def status(url: Url = URL_DEFAULT, as_json: Json = False) -> None:
    """Show a server's version, whether it is ready, and its topics, groups and delayed records.

    Exit code 0: ready. 1: it runs, and is not ready, or refuses to tell. 3: it cannot be reached.

    [b]Examples[/b]

      mq status
      mq --context prod status --json | jq .ready
    """
    server = server_of(url)
    shown = ask(url, _looked)
    if as_json:
        print_json({"url": server.url, **shown})
    else:
        _print(server.url, shown)
    if not shown["ready"]:
        raise typer.Exit(REFUSED)


async def _looked(client: Client) -> dict[str, object]:
    """What there is to see. While a server recovers it says only that."""
    code, ready = await client.probe("/readyz")
    reasons = ready.get("reasons") or []
    shown: dict[str, object] = {"ready": code == 200, "reasons": reasons}
    code, info = await client.probe("/mq/v1/info")
    if code == STARTING:
        return shown
    shown |= {name: info.get(name) for name in ("version", "cluster_id", "started_ms", "kafka")}
    try:
        topics = rows_of(await client.get("/mq/v1/topics"), "topics")
        groups = rows_of(await client.get("/mq/v1/groups"), "groups")
        pending = (await client.get("/mq/v1/schedules?limit=1")).get("total")
    except CliError as error:
        return {**shown, "refused": str(error)}
    return {
        **shown,
        "topics": len(topics),
        "partitions": sum(number_of(topic["partitions"]) for topic in topics),
        "groups": len(groups),
        "members": sum(number_of(group["member_count"]) for group in groups),
        "delayed": pending,
    }


def _print(url: str, shown: Mapping[str, object]) -> None:
    reasons = shown["reasons"]
    assert isinstance(reasons, list)
    rows: list[tuple[str, object]] = [("server", url)]
    rows.append(("ready", "yes" if shown["ready"] else f"no: {'; '.join(map(str, reasons))}"))
    if isinstance(started_ms := shown.get("started_ms"), int):
        rows.append(("version", shown["version"]))
        rows.append(("running for", _length(time.time() - started_ms / 1000)))
    if (kafka := shown.get("kafka")) is not None:  # a server of 0.2 does not say
        assert isinstance(kafka, list)
        rows.append(("Kafka clients", ", ".join(map(str, kafka)) or "no port for them"))
    if "topics" in shown:
        rows.append(("topics", f"{shown['topics']} with {shown['partitions']} partitions"))
        rows.append(("groups", f"{shown['groups']} with {shown['members']} members"))
        rows.append(("delayed", f"{shown['delayed']} records"))
    print_table(("", ""), rows)
    if "refused" in shown:
        print_error(str(shown["refused"]))


def _length(seconds: float) -> str:
    minutes = int(max(seconds, 0)) // 60
    if minutes < 1:
        return f"{max(seconds, 0):.0f} s"
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return " ".join(f"{count} {unit}" for count, unit in ((days, "d"), (hours, "h"), (minutes, "min")) if count)
