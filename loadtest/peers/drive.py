"""The client process: one work for one peer, its numbers as one line of JSON.

    python -m loadtest.peers.drive PEER ENDPOINT WORK TOPIC '{"duration_s": 3}'

A process of its own, so that what the client costs is never taken for the server's, and a client that hangs or dies
spoils one row.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Awaitable, Callable

import orjson
import uvloop

from loadtest.peers import work
from loadtest.peers.registry import peers

WORKS: dict[str, Callable[..., Awaitable[work.Numbers]]] = {
    "batched": work.batched,
    "consume": work.consume,
    "push": work.push,
    "delayed": work.delayed,
    "topics": work.topics,
    "create": work.create,
    "fill": work.fill,
    "first_record": work.first_record,
}


async def drive(peer_name: str, endpoint: str, name: str, topic: str, options: dict[str, float]) -> work.Numbers:
    """Raises WorkFailed, or what the client raises."""
    async with peers()[peer_name].client(endpoint) as client:
        return await WORKS[name](client, topic, **options)


def main() -> None:
    """See the module. A failure is `{"failed": "why"}` and exit code 1."""
    peer_name, endpoint, name, topic, options = sys.argv[1:]
    try:
        numbers = uvloop.run(drive(peer_name, endpoint, name, topic, orjson.loads(options)))
    except BaseException as error:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        print(orjson.dumps({"failed": f"{type(error).__name__}: {error}"[:500]}).decode(), flush=True)
        sys.exit(1)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(orjson.dumps({**numbers, "client_cpu_s": used.ru_utime + used.ru_stime}).decode(), flush=True)


if __name__ == "__main__":
    main()
