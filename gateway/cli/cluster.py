"""`mq cluster`: a backup of all nodes of a cluster with what they agree on, and a cluster made of one."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from gateway.cli.offline import copied
from gateway.cli.terminal import USAGE, CliError, Json, print_json, print_note, time_shown

if TYPE_CHECKING:
    from gateway.settings.config import GatewayConfig

app = typer.Typer(help="Back up and restore a whole cluster.", no_args_is_help=True)

Config = Annotated[
    Path | None,
    typer.Option(help="The settings of one of the nodes, where the metadata is.", show_default=False),
]
Data = Annotated[
    list[Path], typer.Option("--data", help="A node's data directory; once for each node.", show_default=False)
]


@app.command()
def backup(
    out: Annotated[Path, typer.Argument(help="The directory to make; must not exist.", show_default=False)],
    data: Data,
    config: Config = None,
    without: Annotated[
        list[str] | None,
        typer.Option(help="A node whose directory cannot be had: its records are not in the backup."),
    ] = None,
    do_verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check each copy as `mq verify` does.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Copy a whole cluster, while it is used or not: all data directories, and what the nodes agree on. The backup
    has everything acknowledged before this began.

    Run it where the directories of all nodes can be read (mounted, if they are on several machines), as a user who may.

    [b]Example[/b]

      mq cluster backup /backup/friday --config /etc/mq/n1.toml --data /data/n1 --data /data/n2
    """
    from gateway.main.cluster_backup import back_up, directories
    from gateway.main.clustering import shared_metadata

    partial = out.with_name(f"{out.name}.partial")
    for path in (out, partial):
        if path.exists():
            raise CliError(f"{path} is in the way: name a directory that does not exist", USAGE)
    settings = _settings(config)

    async def make() -> Any:
        async with shared_metadata(settings.cluster) as (metadata, _):
            return await back_up(
                metadata,
                directories(data),
                partial,
                lambda root, target: copied(root, target, None, do_verify=do_verify, doing="backing up"),
                without=without or (),
            )

    try:
        partial.mkdir(mode=0o700)
        made = _run(make())
        partial.rename(out)
    except BaseException:
        with suppress(OSError):
            shutil.rmtree(partial)
        raise
    if as_json:
        print_json({"out": str(out), **asdict(made)})
        return
    typer.echo(
        f"{out}: cluster {made.cluster}, nodes {', '.join(made.nodes)}; has everything acknowledged before "
        f"{time_shown(made.began_ms)}"
    )
    if made.on_kafka:
        print_note(
            f"not in it: what {made.on_kafka} partitions, and shards of delayed records and of groups, have on Kafka"
        )


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="BACKUP", help="What mq cluster backup made.", show_default=False)],
    data: Annotated[
        list[str],
        typer.Option("--data", metavar="NODE=DIR", help="Where a node's directory is to be; once for each node."),
    ],
    config: Config = None,
    do_verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check each result as `mq verify` does.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Make the data directories of all nodes, and what they agree on, of a backup. Then start the nodes.

    No offset is given twice, not even those that the lost cluster gave after the backup: every partition goes on 2^44
    offsets further on, as after a takeover. Consumer groups go on where they were; delayed records fire once. The
    directories must not exist, and there must be no cluster where the settings say, under their prefix.

    [b]Example[/b]

      mq cluster restore /backup/friday --config /etc/mq/n1.toml --data n1=/data/n1 --data n2=/data/n2
    """
    from gateway.main import cluster_backup
    from gateway.main.clustering import shared_metadata
    from gateway.settings.config import load
    from store.offline.backup import MANIFEST

    roots: dict[str, Path] = {}
    for text in data:
        name, _, path = text.partition("=")
        if not path:
            raise CliError(f"--data {text}: say NODE=DIR", USAGE)
        roots[name] = Path(path)
    settings = _settings(config)

    def configured(root: Path) -> GatewayConfig:
        return load(file=config, environment=os.environ, flags={"data": root})

    async def make() -> Any:
        async with shared_metadata(settings.cluster) as (metadata, _):
            return await cluster_backup.restore(
                metadata,
                source,
                roots,
                lambda copy, target: copied(copy, target, None, do_verify=do_verify, doing="restoring"),
                configured,
            )

    made = _run(make())
    if as_json:
        print_json({"nodes": sorted(roots), **made._asdict()})
    else:
        typer.echo(f"restored {made.partitions:,} partitions on {', '.join(sorted(roots))}; start the nodes")
    for name, root in roots.items():
        if orjson.loads((source / "nodes" / name / MANIFEST).read_bytes()).get("index") == "rocksdb":
            print_note(
                f'the index of {name} was "rocksdb": before its start, mq index rebuild --data {root} --to rocksdb'
            )


def _settings(config: Path | None) -> GatewayConfig:
    from gateway.main.clustering import checked
    from gateway.settings.config import ConfigError, load

    try:
        settings = load(file=config, environment=os.environ, flags={"data": Path()})
        if settings.cluster.node is None or not settings.cluster.is_shared:
            raise CliError("say --config FILE: the settings of a node, which say where the metadata is", USAGE)
        checked(settings.cluster)
        return settings
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error


def _run(work: Coroutine[Any, Any, Any]) -> Any:
    from gateway.cluster.metadata import MetadataError
    from store.errors import StoreError

    try:
        return asyncio.run(work)
    except (StoreError, MetadataError, OSError, ValueError) as error:
        raise CliError(str(error)) from error
