"""`mq serve`: run a server until SIGTERM or SIGINT."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from gateway.cli.terminal import USAGE, CliError
from gateway.main.garbage import collector_off
from store.errors import StoreError


def serve(
    data: Annotated[
        Path | None, typer.Option(help="Directory of the store; made when it is missing.", file_okay=False)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [dim]default: 127.0.0.1[/dim]")] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 picks a free one. [dim]default: 8082[/dim]")
    ] = None,
    kafka_port: Annotated[
        int | None,
        typer.Option(
            help="Port for Kafka clients; 0 picks a free one. [dim]default: 9092, if free, and on loopback only[/dim]"
        ),
    ] = None,
    acks: Annotated[
        str | None,
        typer.Option(
            help="When a send is answered: [b]flushed[/b] survives a power cut (default), [b]written[/b] only a kill."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Processes for sends and reads beside the store's, on one port. [dim]default: none[/dim]"),
    ] = None,
    node: Annotated[
        str | None, typer.Option(help="Be one of several nodes, under this name; with --etcd and --secret-file.")
    ] = None,
    join: Annotated[
        bool,
        typer.Option("--join", help="Serve a cluster without a store: no --data; with --etcd and --secret-file."),
    ] = False,
    no_store: Annotated[
        bool,
        typer.Option("--no-store", help="Be a node that keeps nothing on a disk: no --data; all is on Kafka."),
    ] = False,
    etcd: Annotated[
        list[str] | None,
        typer.Option(help="Where the nodes keep what they agree on: http://host:2379; may be given again."),
    ] = None,
    secret_file: Annotated[
        Path | None, typer.Option(help="File with the secret by which the nodes know each other.")
    ] = None,
    internal_port: Annotated[
        int | None,
        typer.Option(help="Port for the other nodes; 0 picks a free one. [dim]default: 8083[/dim]"),
    ] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option(help="A Kafka cluster to move partitions to: kafka1=kafka://host:9092; may be given again."),
    ] = None,
    default_broker: Annotated[
        str | None, typer.Option(help="The one of these on which the partitions of new topics begin; else on nodes.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="Settings in TOML; flags and MQ_* variables win over it.")] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    auth: Annotated[
        bool,
        typer.Option(
            "--auth", help="Require credentials of every client; see [b]mq token[/b]. [dim]default: off[/dim]"
        ),
    ] = False,
    insecure_no_auth: Annotated[
        bool,
        typer.Option("--insecure-no-auth", help="Listen beyond this machine although authentication is disabled."),
    ] = False,
) -> None:
    """Run a server until Ctrl-C or SIGTERM.

    The first line printed is its URL, once it accepts connections.

    [b]Examples[/b]

      mq serve --data ./data
      mq serve --data ./data --port 0 --acks written
      mq serve --data ./data --workers 4
      mq serve --data ./data --auth --host 0.0.0.0
      mq serve --data ./data --node n1 --etcd http://127.0.0.1:2379 --secret-file secret
      mq serve --join --etcd http://127.0.0.1:2379 --secret-file secret
      mq serve --no-store --config nodes.toml --node n1
      MQ_DATA=/var/lib/mq mq serve --config /etc/mq.toml
    """
    # Here, not at the top: a client command need not load the server.
    with collector_off():
        import uvloop

        from gateway.auth.policy import PolicyError
        from gateway.cluster.metadata import MetadataError
        from gateway.main import logs, wiring
        from gateway.main.tls import TlsError
        from gateway.settings.config import ConfigError, load

    flags = {
        "data": data,
        "host": host,
        "port": port,
        "kafka.port": kafka_port,
        "store.acks": acks,
        "workers": workers,
        "cluster.node": node,
        "cluster.join": join or None,
        "cluster.no_store": no_store or None,
        "cluster.etcd": tuple(etcd) if etcd else None,
        "cluster.secret_file": secret_file,
        "cluster.internal_port": internal_port,
        "cluster.kafka": tuple(broker) if broker else None,
        "cluster.default_broker": default_broker,
        "log_level": log_level,
        "auth.enabled": auth or None,
        "insecure_no_auth": insecure_no_auth or None,
    }
    try:
        settings = load(file=config, environment=os.environ, flags=flags)
    except ConfigError as error:
        raise CliError(str(error), USAGE) from error
    logs.configure(settings.logging_level, settings.log_format)
    try:
        uvloop.run(wiring.serve(settings, announce=_announce))
    except (ConfigError, PolicyError, TlsError) as error:
        raise CliError(str(error), USAGE) from error
    except MetadataError as error:
        raise CliError(f"cannot join the cluster: {error}") from error
    except StoreError as error:
        what = f"serve {settings.data}" if settings.cluster.has_data else "join the cluster"
        raise CliError(f"cannot {what}: {error}") from error
    except OSError as error:
        what = f" {settings.data}" if settings.cluster.has_data else ""
        raise CliError(f"cannot serve{what} on {settings.host}:{settings.port}: {error}") from error


def _announce(url: str) -> None:
    sys.stdout.write(url + "\n")
    sys.stdout.flush()
