"""Names and messages of kombu as topics and records. Pure.

A durable queue is a topic of its name. Queues that live with a process (auto_delete, exclusive) have none: what is for
them goes to the topic of their exchange, tagged with the routing key.

A message is one JSON object, as kombu's other transports write it. Protocol 2 of Celery says in `headers["eta"]` when a
task is due: that is the record's delivery time. When it has passed, the header is renamed, because a worker would hold
a task with an `eta` itself, and raise its prefetch count for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

TOPIC_CHARS_MAX = 240
"""Of a topic's name, with room for what the server puts before it (`%RETRY%`)."""
TAG_CHARS_MAX = 128
EXCHANGE_PREFIX = "kombu-exchange."
ANONYMOUS = "amq.default"
"""AMQP's name for the exchange without a name, whose routing keys are names of queues."""
SERVED_ETA = "mq_eta"

_OTHER = re.compile(r"[^A-Za-z0-9._-]|_(?=x)")


def escaped(name: str) -> str:
    """A name in the characters that topics may have: every other byte as `_xHH`. No two names become one."""
    return _OTHER.sub(lambda match: "".join(f"_x{byte:02x}" for byte in match[0].encode()), name)


def topic_of_queue(queue: str) -> str:
    """The topic of a durable queue. Raises ValueError for a name that is empty or too long."""
    name = escaped(queue)
    if name.startswith(("__", EXCHANGE_PREFIX)) or name in (".", ".."):  # these names have other uses
        name = f"_x{ord(name[0]):02x}{name[1:]}"
    return _checked(name, f"queue {queue!r}")


def topic_of_exchange(exchange: str) -> str:
    """The topic of what queues that live with a process get from an exchange."""
    return _checked(EXCHANGE_PREFIX + escaped(exchange or ANONYMOUS), f"exchange {exchange!r}")


def tag_of(routing_key: str) -> str | None:
    """The tag of a routing key; None for an empty one."""
    tag = escaped(routing_key)
    return (tag if len(tag) <= TAG_CHARS_MAX else sha256(tag.encode()).hexdigest()) or None


def eta_of(headers: Mapping[str, Any]) -> datetime | None:
    """When the task is due; a time without a zone is UTC. None without a time, or with one that is none."""
    eta = headers.get("eta")
    if not isinstance(eta, str):
        return eta.replace(tzinfo=eta.tzinfo or UTC) if isinstance(eta, datetime) else None
    try:
        due = datetime.fromisoformat(eta)
    except ValueError:
        return None  # the worker says what is wrong with it
    return due.replace(tzinfo=due.tzinfo or UTC)


def is_early(headers: Mapping[str, Any], delivered_at_ms: int | None) -> bool:
    """Whether a task that was delivered has not waited for all of its time, which was longer than the server takes."""
    eta = eta_of(headers)
    return eta is not None and delivered_at_ms is not None and _ms(eta) > delivered_at_ms


def rename_eta(payload: dict[str, Any]) -> None:
    """The task is due, and must not wait in a worker again."""
    headers = payload["headers"]
    if headers.get("eta") is not None:
        headers[SERVED_ETA] = headers["eta"]
        headers["eta"] = None


def delay_s(eta: datetime, now: datetime, delay_max_ms: int) -> float:
    """How long a task is to wait, at most as long as the server takes; 0 when it is due."""
    return min(max(0.0, (eta - now).total_seconds()), delay_max_ms / 1000)


def _checked(name: str, what: str) -> str:
    if not name or len(name) > TOPIC_CHARS_MAX:
        raise ValueError(
            f"{what}: its topic's name would have {len(name)} characters; it may have 1 to {TOPIC_CHARS_MAX}"
        )
    return name


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)
