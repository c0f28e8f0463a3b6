"""What surfaces ask of a schema registry: a port, so that nothing below `gateway/main` knows which registry or library
answers. `gateway/schemas/` does; a server without a registry has none.

JSON is the form in which callers have keys and values: Avro's JSON encoding (a union's value is {"type": value}),
Protobuf's JSON mapping, JSON as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from gateway.codec.schema_parts import SchemaFormat, SubjectStrategy
from gateway.routing.base import Routes


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaWish:
    """Which schema a sender names. `text`, `schema_id` and `version` exclude each other; without any of them it is the
    newest of the subject."""

    format: SchemaFormat | None = None
    """None: whatever the registry says that the schema is."""

    text: str | None = None
    """The schema itself, registered if it is new."""

    schema_id: int | None = None
    version: int | None = None
    subject: str | None = None
    """Else `strategy` names it."""

    strategy: SubjectStrategy = SubjectStrategy.TOPIC_NAME
    with_version: bool = False
    """Whether `Chosen` is to have subject and version, which may be one more question to the registry."""


class Chosen(NamedTuple):
    """A schema to serialize by. Subject and version are None unless they were asked for."""

    format: SchemaFormat
    schema_id: int
    subject: str | None = None
    version: int | None = None


class Unreadable(NamedTuple):
    """Why a key or value cannot be converted."""

    why: str


Converted = bytes | Unreadable


def subject_topic(routes: Routes, topic: str) -> str:
    """What producers of Kafka's protocol call a topic, and so its subjects: an attached one has the name that it has in
    its Kafka cluster. Raises UnknownQueue."""
    attachment = routes.attached(routes.topic(topic).topic_id)
    return topic if attachment is None else attachment.name


class Schemas(Protocol):
    """Serializes and deserializes by the schemas of a registry. A registry that does not answer is RequestError
    503/50352, one that refuses this server 502/50251; both say nothing of the records."""

    async def choose(self, topic: str, wish: SchemaWish, *, is_key: bool) -> Chosen:
        """The schema that a sender to a topic means; a new one is registered, durably on return. `topic`: as producers
        of Kafka's protocol name it. Raises RequestError 408/40801 when the registry does not have it or does not take
        it, 422/42205 for a text that is no schema."""
        ...

    async def serialize(self, schema_id: int, values: Sequence[bytes]) -> list[Converted]:
        """JSON values in the schema's binary form, head included. Raises RequestError."""
        ...

    async def deserialize(self, fmt: SchemaFormat, parts: Sequence[bytes]) -> list[Converted]:
        """Keys or values as JSON: of the first ones, of one at least, where all take too long or too much memory.
        Raises RequestError."""
        ...
