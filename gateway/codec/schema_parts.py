"""Keys and values as serializers of a schema registry write them. Pure.

    byte 0      0
    bytes 1-4   the schema's id in the registry, big-endian
    the rest    Avro's binary encoding, JSON, or message indexes and a Protobuf message

A registry's clients call it the wire format. What an id stands for, only the registry tells.
"""

from __future__ import annotations

from enum import Enum
from struct import Struct

MAGIC = 0
SCHEMA_ID_MAX = 2**31 - 1
_HEAD = Struct(">BI")


class SchemaFormat(Enum):
    """The formats that need a schema registry, by their names in the REST Proxy's media types."""

    AVRO = "avro"
    JSONSCHEMA = "jsonschema"
    PROTOBUF = "protobuf"


class SubjectStrategy(Enum):
    """How the name of a schema's subject is made, by its name in the REST Proxy's v3 API."""

    TOPIC_NAME = "TOPIC_NAME"  # orders-key, orders-value
    RECORD_NAME = "RECORD_NAME"  # org.example.Order
    TOPIC_RECORD_NAME = "TOPIC_RECORD_NAME"  # orders-org.example.Order


def framed(schema_id: int, payload: bytes) -> bytes:
    """A key or value with the head that names its schema."""
    return _HEAD.pack(MAGIC, schema_id) + payload


def split_frame(part: bytes) -> tuple[int, bytes] | None:
    """The schema's id and the rest of a key or value; None for one without such a head."""
    if len(part) < _HEAD.size or part[0] != MAGIC:
        return None
    return _HEAD.unpack_from(part)[1], part[_HEAD.size :]
