"""Which schema, and the values by it: see `gateway.api.schemas.Schemas`.

A schema never changes under its id, so what the registry has said of one is kept until others need the room; that it
has none is believed for ABSENT_S, and which version of a subject is the newest for LATEST_S.

A new schema is registered under the subjects of the topic that is sent to, `orders-key`, `orders-value` and
`orders-<record>`: to send there is what the caller may do. Other subjects are other topics', or many topics', and this
server's credentials at the registry are not the caller's: under them a schema has to be registered already.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import islice
from typing import NamedTuple

from gateway.api.schemas import Chosen, Converted, SchemaWish, Unreadable
from gateway.codec.schema_parts import SCHEMA_ID_MAX, SchemaFormat, SubjectStrategy, framed, split_frame
from gateway.errors import SCHEMA_ILLEGAL, UNDECODABLE, RequestError, bad_request
from gateway.schemas.converter import Converter
from gateway.schemas.kept import Answer, Kept
from gateway.schemas.registry import Reference, Refused, Registered, Registry
from gateway.schemas.request import REFERENCES_MAX, SCHEMA_BYTES_MAX, SchemaText
from gateway.settings.registry import RegistryConfig
from store.limits import MiB

KEPT_BYTES_MAX = 16 * MiB
"""Of schemas, and of which of them a subject has."""

ABSENT_S = 10.0
LATEST_S = 10.0
IDS_AT_ONCE = 16
"""Schemas that one request asks the registry for at once."""

TOO_LONG = Unreadable("there was no time left for it: send fewer records in one request")

_FORMATS = {"AVRO": SchemaFormat.AVRO, "JSON": SchemaFormat.JSONSCHEMA, "PROTOBUF": SchemaFormat.PROTOBUF}
_TYPES = {fmt: name for name, fmt in _FORMATS.items()}
_RECORD_NAME = re.compile(r"[A-Za-z0-9_.]+")


class _Absent(NamedTuple):
    """The registry does not have it, or what it has cannot be used."""

    why: str


class _Version(NamedTuple):
    """A schema of a subject."""

    format: SchemaFormat
    schema_id: int
    version: int | None


_Known = SchemaText | _Version | _Absent | str


class RegistrySchemas:
    """Schemas of one registry. Made by `opened`."""

    def __init__(
        self,
        registry: Registry,
        converter: Converter,
        *,
        auto_register: bool = True,
        kept_bytes_max: int = KEPT_BYTES_MAX,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._converter = converter
        self._auto_register = auto_register
        self._kept: Kept[_Known] = Kept(kept_bytes_max, monotonic_s=monotonic_s)

    async def choose(self, topic: str, wish: SchemaWish, *, is_key: bool) -> Chosen:
        """See `Schemas.choose`."""
        if sum(one is not None for one in (wish.text, wish.schema_id, wish.version)) > 1:
            raise bad_request("schema, schema_id and schema_version exclude each other")
        if wish.schema_id is not None:
            return await self._chosen_by_id(topic, wish, wish.schema_id, is_key)
        if wish.text is not None:
            return await self._chosen_by_text(topic, wish, wish.text, is_key)
        subject = wish.subject
        if subject is None:
            if wish.strategy is not SubjectStrategy.TOPIC_NAME:
                raise bad_request(f"{wish.strategy.value} names no subject without a schema: give schema or schema_id")
            subject = _topic_subject(topic, is_key)
        version = wish.version
        found = await self._kept.get(("version", subject, version), lambda: self._fetch_version(subject, version))
        if isinstance(found, _Absent):
            raise RequestError(UNDECODABLE, f"The schema registry: {found.why}.")
        assert isinstance(found, _Version)
        _check_format(wish, found.format, found.schema_id)
        return Chosen(found.format, found.schema_id, subject, found.version)

    async def serialize(self, schema_id: int, values: Sequence[bytes]) -> list[Converted]:
        """See `Schemas.serialize`."""
        schema = await self._schema(schema_id)
        converted = await self._converter.convert("serialize", [schema], [(0, value) for value in values])
        made = [one if isinstance(one, Unreadable) else framed(schema_id, one) for one in converted]
        return made + [TOO_LONG] * (len(values) - len(made))

    async def deserialize(self, fmt: SchemaFormat, parts: Sequence[bytes]) -> list[Converted]:
        """See `Schemas.deserialize`."""
        frames = [split_frame(part) for part in parts]
        ids = iter({frame[0] for frame in frames if frame is not None})
        schemas: dict[int, SchemaText | _Absent] = {}
        while some := list(islice(ids, IDS_AT_ONCE)):
            schemas.update(zip(some, await asyncio.gather(*map(self._by_id, some)), strict=True))
        made: list[Converted | None] = []
        numbers: dict[int, int] = {}
        values: list[tuple[int, bytes]] = []
        for frame in frames:
            if frame is None:
                made.append(Unreadable("it does not begin as what a schema registry's serializer writes"))
                continue
            schema_id, payload = frame
            schema = schemas[schema_id]
            if isinstance(schema, _Absent):
                made.append(Unreadable(schema.why))
            elif schema.format != fmt.value:
                made.append(Unreadable(f"its schema {schema_id} is one of {schema.format}, not of {fmt.value}"))
            else:
                made.append(None)
                values.append((numbers.setdefault(schema_id, len(numbers)), payload))
        texts = [schema for schema in map(schemas.__getitem__, numbers) if isinstance(schema, SchemaText)]
        converted = iter(await self._converter.convert("deserialize", texts, values))
        answer: list[Converted] = []
        for one in made:
            found = next(converted, None) if one is None else one
            if found is None:
                break
            answer.append(found)
        return answer

    async def close(self) -> None:
        """End what is under way."""
        await self._kept.close()
        await self._converter.close()

    # By id, by text, by version

    async def _chosen_by_id(self, topic: str, wish: SchemaWish, schema_id: int, is_key: bool) -> Chosen:
        schema = await self._schema(schema_id)
        fmt = SchemaFormat(schema.format)
        _check_format(wish, fmt, schema_id)
        if not wish.with_version:
            return Chosen(fmt, schema_id)
        subject = await self._subject(topic, wish, schema, is_key)
        known = await self._kept.get(
            ("id under", subject, schema_id), lambda: self._fetch_registered(subject, schema_id, schema)
        )
        if isinstance(known, _Absent):
            raise RequestError(UNDECODABLE, f"The schema registry: {known.why}.")
        assert isinstance(known, _Version)
        return Chosen(fmt, schema_id, subject, known.version)

    async def _chosen_by_text(self, topic: str, wish: SchemaWish, text: str, is_key: bool) -> Chosen:
        if wish.format is None:
            raise bad_request("a schema needs a type: AVRO, JSONSCHEMA or PROTOBUF")
        if len(text.encode()) > SCHEMA_BYTES_MAX:
            raise RequestError(SCHEMA_ILLEGAL, f"Invalid schema: more than {SCHEMA_BYTES_MAX} bytes.")
        schema = SchemaText(wish.format.value, text)
        subject = await self._subject(topic, wish, schema, is_key)
        is_own = subject == _topic_subject(topic, is_key) or (
            wish.subject is None
            and wish.strategy is SubjectStrategy.TOPIC_RECORD_NAME
            and _RECORD_NAME.fullmatch(subject, len(topic) + 1) is not None
        )
        known = await self._kept.get(
            ("text", subject, schema), lambda: self._fetch_text(subject, schema, may_register=is_own)
        )
        assert isinstance(known, _Version)
        return Chosen(wish.format, known.schema_id, subject, known.version)

    async def _subject(self, topic: str, wish: SchemaWish, schema: SchemaText, is_key: bool) -> str:
        if wish.subject is not None:
            return wish.subject
        if wish.strategy is SubjectStrategy.TOPIC_NAME:
            return _topic_subject(topic, is_key)
        name = await self._kept.get(("name", schema), lambda: self._fetch_name(schema))
        assert isinstance(name, str)
        return name if wish.strategy is SubjectStrategy.RECORD_NAME else f"{topic}-{name}"

    async def _schema(self, schema_id: int) -> SchemaText:
        """A schema that a sender names. Raises RequestError 408/40801."""
        schema = await self._by_id(schema_id)
        if isinstance(schema, _Absent):
            raise RequestError(UNDECODABLE, f"The schema registry: {schema.why}.")
        return schema

    async def _by_id(self, schema_id: int) -> SchemaText | _Absent:
        if not 0 < schema_id <= SCHEMA_ID_MAX:
            return _Absent(f"there is no schema {schema_id}")
        known = await self._kept.get(("id", schema_id), lambda: self._fetch_by_id(schema_id))
        assert isinstance(known, SchemaText | _Absent)
        return known

    # Asking the registry

    async def _fetch_by_id(self, schema_id: int) -> Answer[_Known]:
        try:
            registered = await self._registry.by_id(schema_id)
        except Refused as refused:
            return _absent(f"schema {schema_id}: {refused.message}")
        if (fmt := _FORMATS.get(registered.schema_type)) is None:
            return _absent(f"schema {schema_id} is one of {registered.schema_type}, which is not read here")
        references: dict[str, str] = {}
        if problem := await self._collect(registered, references, {"": len(registered.schema)}):
            return _absent(f"schema {schema_id}: {problem}")
        schema = SchemaText(fmt.value, registered.schema, tuple(references.items()))
        return Answer(schema, schema.size_bytes)

    async def _collect(self, of: Registered, found: dict[str, str], sizes: dict[str, int]) -> str | None:
        """Add what a schema refers to, what others need first. `sizes`: of it and of all that were begun, by name.
        Returns why it cannot be had."""
        if sum(sizes.values()) > SCHEMA_BYTES_MAX:
            return f"with what it refers to it has more than {SCHEMA_BYTES_MAX} bytes"
        for one in of.references:
            if one.name in sizes:
                continue
            if len(sizes) > REFERENCES_MAX:
                return f"it refers to more than {REFERENCES_MAX} schemas"
            sizes[one.name] = 0
            try:
                registered = await self._registry.by_version(one.subject, one.version)
            except Refused as refused:
                return f"what it refers to as {one.name}: {refused.message}"
            sizes[one.name] = len(registered.schema)
            if problem := await self._collect(registered, found, sizes):
                return problem
            found[one.name] = registered.schema
        return None

    async def _fetch_version(self, subject: str, version: int | None) -> Answer[_Known]:
        try:
            registered = await self._registry.by_version(subject, version)
        except Refused as refused:
            return _absent(refused.message)
        if (fmt := _FORMATS.get(registered.schema_type)) is None:
            return _absent(f"{registered.schema_type} is not written here")
        assert registered.id is not None
        known = _Version(fmt, registered.id, registered.version)
        return Answer(known, len(subject), None if version is not None else LATEST_S)

    async def _fetch_registered(self, subject: str, schema_id: int, schema: SchemaText) -> Answer[_Known]:
        try:
            registered = await self._registry.by_id(schema_id)  # its references as the registry names them
            found = await self._registry.look_up(
                subject, _body(SchemaFormat(schema.format), schema.text, registered.references)
            )
        except Refused as refused:
            return _absent(f"schema {schema_id} under {subject}: {refused.message}")
        return Answer(_Version(SchemaFormat(schema.format), schema_id, found.version), len(subject))

    async def _fetch_text(self, subject: str, schema: SchemaText, *, may_register: bool) -> Answer[_Known]:
        fmt = SchemaFormat(schema.format)
        body = _body(fmt, schema.text)
        try:
            try:
                found = await self._registry.look_up(subject, body)
            except Refused as refused:
                if refused.status != 404:
                    raise
                if not (may_register and self._auto_register):
                    why = "is no subject of this topic" if not may_register else "gets no new schemas from this server"
                    raise RequestError(
                        UNDECODABLE, f"The schema is not registered under {subject}, which {why}."
                    ) from None
                found = await self._registry.register(subject, body)
                if found.version is None:
                    found = await self._registry.look_up(subject, body)
        except Refused as refused:
            if refused.status in (400, 422):
                raise RequestError(SCHEMA_ILLEGAL, f"Invalid schema: {refused.message}") from None
            raise RequestError(UNDECODABLE, f"The schema registry: {refused.message}.") from None
        assert found.id is not None
        return Answer(_Version(fmt, found.id, found.version), len(subject) + schema.size_bytes)

    async def _fetch_name(self, schema: SchemaText) -> Answer[_Known]:
        [name] = await self._converter.convert("name", [schema], [(0, b"")])
        if isinstance(name, Unreadable):
            raise RequestError(SCHEMA_ILLEGAL, f"Invalid schema: {name.why}")
        return Answer(name.decode(), schema.size_bytes)


@asynccontextmanager
async def opened(config: RegistryConfig) -> AsyncIterator[RegistrySchemas]:
    """The schemas of the registry that the settings name. Raises OSError, ValueError for its files."""
    async with Registry(config) as registry:
        schemas = RegistrySchemas(registry, Converter(), auto_register=config.auto_register)
        try:
            yield schemas
        finally:
            await schemas.close()


def _topic_subject(topic: str, is_key: bool) -> str:
    return f"{topic}-{'key' if is_key else 'value'}"


def _body(fmt: SchemaFormat, text: str, references: Sequence[Reference] = ()) -> dict[str, object]:
    body: dict[str, object] = {"schema": text}
    if fmt is not SchemaFormat.AVRO:  # the one type that old registries know, without its name
        body["schemaType"] = _TYPES[fmt]
    if references:
        body["references"] = references
    return body


def _check_format(wish: SchemaWish, fmt: SchemaFormat, schema_id: int) -> None:
    if wish.format not in (None, fmt):
        assert wish.format is not None
        raise RequestError(
            SCHEMA_ILLEGAL, f"Invalid schema: {schema_id} is one of {fmt.value}, not of {wish.format.value}."
        )


def _absent(why: str) -> Answer[_Known]:
    return Answer(_Absent(why), len(why), ABSENT_S)
