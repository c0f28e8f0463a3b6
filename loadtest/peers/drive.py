"""The client process: one way of one work, its numbers as one line of JSON.

    python -m loadtest.peers.drive PEER CLIENT WORK ENDPOINT TOPIC '{"duration_s": 5, "warm_s": 1}'

A process of its own, so that what the client costs is never taken for the server's, and a client that hangs or dies
spoils one row. What it and its child processes cost is taken from outside (usage.py).
"""

from __future__ import annotations

import sys

import orjson
import uvloop

from loadtest.peers.peer import Numbers, Options, WorkFailed
from loadtest.peers.registry import peer_of


async def drive(peer: str, client: str, work: str, endpoint: str, topic: str, options: Options) -> Numbers:
    """Raises WorkFailed, or what the client raises."""
    for way in peer_of(peer).ways(work):
        if way.client == client:
            return await way.run(endpoint, topic, options)
    raise WorkFailed(f"{peer} has no client {client!r} for {work}")


def main() -> None:
    """See the module. A failure is `{"failed": "why"}` and exit code 1."""
    *names, options = sys.argv[1:]
    peer, client, work, endpoint, topic = names
    try:
        numbers = uvloop.run(drive(peer, client, work, endpoint, topic, orjson.loads(options)))
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(orjson.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}).decode(), flush=True)
        sys.exit(1)
    print(orjson.dumps(dict(numbers)).decode(), flush=True)


if __name__ == "__main__":
    main()
