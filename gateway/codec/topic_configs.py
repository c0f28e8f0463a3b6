"""Settings of a topic under Kafka's names: `retention.ms`, `max.message.bytes`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import RequestError
from store.topics import TopicConfig

CONFIG_ILLEGAL = 40002
KAFKA_NAMES = {"retention_ms": "retention.ms", "max_message_bytes": "max.message.bytes"}
_OUR_NAMES = {kafka: ours for ours, kafka in KAFKA_NAMES.items()}


def kafka_configs(config: TopicConfig) -> dict[str, str]:
    """A topic's settings under Kafka's names; never empty, as old clients want it."""
    chosen = {KAFKA_NAMES[name]: str(value) for name, value in config.chosen().items() if name in KAFKA_NAMES}
    return {"cleanup.policy": "delete", **chosen}


def kafka_changes(configs: Iterable[tuple[str, object]]) -> dict[str, int | str | None]:
    """Settings under Kafka's names as changes of a TopicConfig; None takes one back. Raises RequestError 400/40002."""
    changes: dict[str, int | str | None] = {}
    for name, value in configs:
        ours = _OUR_NAMES.get(name)
        if ours is not None:
            text = str(value)
            if value is not None and not (text.isascii() and text.isdigit() and len(text) <= 18):
                raise RequestError(CONFIG_ILLEGAL, f"{name}: must be a positive integer, not {text[:40]}")
            changes[ours] = None if value is None else int(text)
        elif name != "cleanup.policy" or value not in ("delete", None):
            known = ", ".join(_OUR_NAMES)
            raise RequestError(
                CONFIG_ILLEGAL, f"{name}={value} cannot be set here; there are {known}, and cleanup.policy=delete"
            )
    return changes
