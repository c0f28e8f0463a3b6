"""Keys and values of v3 records by schemas of a registry.

    {"type": "AVRO", "schema": "...", "data": 1}          by this schema, registered if it is new
    {"schema_id": 5, "data": 1}                           by the schema of this id
    {"schema_version": 2, "data": 1}                      by this version of the subject
    {"data": 1}                                           by the newest version of the subject

Each may name its `subject`, or how that is named (`subject_name_strategy`); else it is the topic's. A `type` beside an
id or a version is checked. What a receipt says: type, subject, schema_id, schema_version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from gateway.api.schemas import Chosen, Schemas, SchemaWish, Unreadable, subject_topic
from gateway.codec.json_text import json_again
from gateway.codec.schema_parts import SchemaFormat, SubjectStrategy
from gateway.codec.v3_records import DATA_FIELDS, PLAIN_TYPES, SerializedData
from gateway.errors import JSON_UNFIT, RequestError, bad_request, invalid
from gateway.surfaces.http.context import Gateway

_Field = TypeVar("_Field", str, int)

_FORMATS = {fmt.name: fmt for fmt in SchemaFormat}
_STRATEGIES = {strategy.name: strategy for strategy in SubjectStrategy}


def by_schema(gateway: Gateway, topic: str) -> BySchema | None:
    """What serializes for a topic; None on a server without a schema registry. Raises UnknownQueue."""
    if gateway.schemas is None:
        return None
    return BySchema(gateway.schemas, subject_topic(gateway.routes_table, topic))


class _Asked(NamedTuple):
    """Keys or values of records that name the same schema in the same way."""

    indexes: list[int]
    data: list[bytes]


class BySchema:
    """Serializes for one topic."""

    def __init__(self, schemas: Schemas, topic: str) -> None:
        self._schemas = schemas
        self._topic = topic

    async def serialized(self, values: Sequence[object]) -> list[object]:
        """Records as JSON has them, with `SerializedData` for each key and value that names a schema, or a RequestError
        in the place of a record whose schema or data cannot be used."""
        made = list(values)
        asked: dict[tuple[str, SchemaWish], _Asked] = {}
        for index, value in enumerate(values):
            if isinstance(value, dict):
                try:
                    _collect(value, index, asked)
                except RequestError as error:
                    made[index] = error
        for (name, wish), (indexes, data) in asked.items():
            try:
                chosen = await self._schemas.choose(self._topic, wish, is_key=name == "key")
                converted = await self._schemas.serialize(chosen.schema_id, data)
            except RequestError as error:
                for index in indexes:
                    made[index] = error
                continue
            shown = _shown(chosen)
            for index, one in zip(indexes, converted, strict=True):
                value = made[index]
                if isinstance(one, Unreadable):
                    made[index] = RequestError(JSON_UNFIT, f"{name}: the data does not fit its schema: {one.why}")
                elif isinstance(value, dict):
                    made[index] = {**value, name: SerializedData(one, shown)}
        return made


def _collect(value: dict[str, object], index: int, asked: dict[tuple[str, SchemaWish], _Asked]) -> None:
    """Note what of a record is to be serialized. Raises RequestError."""
    for name in ("key", "value"):
        part = value.get(name)
        if not isinstance(part, dict) or part.get("type") in PLAIN_TYPES:
            continue
        for field in part:
            if field not in DATA_FIELDS:
                raise invalid(f"Unrecognized field: {name}.{field}")
        if part.get("data") is None:  # no key, or a tombstone: there is nothing to serialize
            value[name] = None
            continue
        wish = _wish(name, part)
        one = asked.setdefault((name, wish), _Asked([], []))
        one.indexes.append(index)
        one.data.append(json_again(part["data"], f"{name}: data"))


def _wish(name: str, part: Mapping[str, object]) -> SchemaWish:
    kind = part.get("type")
    if kind is not None and kind not in _FORMATS:
        raise bad_request(f"{name}: type must be one of {', '.join((*PLAIN_TYPES, *_FORMATS))}")
    strategy = part.get("subject_name_strategy")
    if strategy is not None and strategy not in _STRATEGIES:
        raise bad_request(f"{name}: subject_name_strategy must be one of {', '.join(_STRATEGIES)}")
    subject = _field(name, part, "subject", str)
    if strategy is not None and subject is not None:
        raise bad_request(f"{name}: subject and subject_name_strategy exclude each other")
    return SchemaWish(
        format=None if kind is None else _FORMATS[str(kind)],
        text=_field(name, part, "schema", str),
        schema_id=_field(name, part, "schema_id", int),
        version=_field(name, part, "schema_version", int),
        subject=subject,
        strategy=SubjectStrategy.TOPIC_NAME if strategy is None else _STRATEGIES[str(strategy)],
        with_version=True,
    )


def _field(name: str, part: Mapping[str, object], field: str, kind: type[_Field]) -> _Field | None:
    given = part.get(field)
    if given is not None and given.__class__ is not kind:
        raise bad_request(f"{name}: {field} must be {'a string' if kind is str else 'an integer'}")
    return given if isinstance(given, kind) else None


def _shown(chosen: Chosen) -> dict[str, object]:
    shown: dict[str, object] = {
        "type": chosen.format.name, "subject": chosen.subject, "schema_id": chosen.schema_id,
        "schema_version": chosen.version,
    }  # fmt: skip
    return {field: one for field, one in shown.items() if one is not None}
