"""Settings of a topic under Kafka's names: `retention.ms`, `max.message.bytes`, and our own `mq.headers`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import RequestError
from store.topics import TopicConfig

CONFIG_ILLEGAL = 40002
KAFKA_NAMES = {"retention_ms": "retention.ms", "max_message_bytes": "max.message.bytes", "mq_headers": "mq.headers"}
_OUR_NAMES = {kafka: ours for ours, kafka in KAFKA_NAMES.items()}


def kafka_configs(config: TopicConfig) -> dict[str, str]:
    """A topic's settings under Kafka's names; never empty, as old clients want it."""
    chosen = {KAFKA_NAMES[name]: kafka_text(value) for name, value in config.chosen().items() if name in KAFKA_NAMES}
    return {"cleanup.policy": "delete", **chosen}


def kafka_text(value: object) -> str:
    """The value of a setting as Kafka writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def kafka_changes(configs: Iterable[tuple[str, object]]) -> dict[str, int | str | None]:
    """Settings under Kafka's names as changes of a TopicConfig; None takes one back. Raises RequestError 400/40002."""
    changes: dict[str, int | str | None] = {}
    for name, value in configs:
        ours = _OUR_NAMES.get(name)
        if ours == "mq_headers":
            if value not in (True, False, "true", "false", None):
                raise RequestError(CONFIG_ILLEGAL, f"{name}: must be true or false, not {str(value)[:40]}")
            changes[ours] = None if value is None else value in (True, "true")
        elif ours is not None:
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
