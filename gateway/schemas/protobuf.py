"""Protobuf: its JSON mapping to its wire format, and back, by schemas that nothing was generated from.

A schema is a `.proto` text, compiled by protoc (grpcio-tools), or a FileDescriptorProto in base64, as Python's clients
register it. The head of a value names one of its messages by the way to it: indexes of messages, nested ones behind the
one they are in, as zigzag varints after their count; a single 0 stands for the first message alone.
"""

from __future__ import annotations

import binascii
import os
import re
import tempfile
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from gateway.schemas.request import SchemaText, Unfit

INDEXES_MAX = 32
"""How deep a message of a schema may be nested in others of it."""

_OWN = "mq_schema_.proto"
_PATH = re.compile(r"(?!.*(?:^|/)\.{0,2}(?:/|$))[A-Za-z0-9._/-]{1,200}")
_WELL_KNOWN = (
    any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2,
    timestamp_pb2, wrappers_pb2,
)  # fmt: skip


class Protobuf:
    """One schema."""

    def __init__(self, schema: SchemaText) -> None:
        """Raises ValueError, or what protobuf raises for what is no schema."""
        self._pool = DescriptorPool()
        for module in _WELL_KNOWN:
            self._pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        described = _descriptors(schema)
        known = {module.DESCRIPTOR.name for module in _WELL_KNOWN}
        for one in described:
            if one.name not in known:
                self._pool.AddSerializedFile(one.SerializeToString())
        self._file = described[-1]
        if not self._file.message_type:
            raise ValueError("it has no message")

    @property
    def name(self) -> str:
        """Of its first message, with the package."""
        return self._full_name([0])

    def serialize(self, value: bytes) -> bytes:
        """JSON to the first message of the schema. Raises Unfit."""
        message = self._message([0])
        if not value.startswith(b"{"):
            raise Unfit("value is no object")
        try:
            json_format.Parse(value, message, descriptor_pool=self._pool)
        except json_format.ParseError as error:
            raise Unfit(str(error)) from None
        written: bytes = message.SerializeToString(deterministic=True)
        return b"\0" + written

    def deserialize(self, payload: bytes) -> bytes:
        """JSON of whichever message of the schema it is. Raises Unfit."""
        indexes, at = _indexes(payload)
        message = self._message(indexes)
        try:
            message.ParseFromString(payload[at:])
        except DecodeError as error:
            raise Unfit(f"no {message.DESCRIPTOR.full_name}: {error}") from None
        text: str = json_format.MessageToJson(
            message, indent=None, always_print_fields_with_no_presence=True, descriptor_pool=self._pool,
            ensure_ascii=False,
        )  # fmt: skip
        return text.encode()

    def _message(self, indexes: list[int]) -> Any:
        return message_factory.GetMessageClass(self._pool.FindMessageTypeByName(self._full_name(indexes)))()

    def _full_name(self, indexes: list[int]) -> str:
        names = [self._file.package] if self._file.package else []
        among = self._file.message_type
        for index in indexes:
            if not 0 <= index < len(among):
                raise Unfit(f"the schema has no message {indexes}")
            names.append(among[index].name)
            among = among[index].nested_type
        return ".".join(names)


def _descriptors(schema: SchemaText) -> list[Any]:
    """Of all files that the schema needs, itself last. Raises ValueError."""
    texts = [*schema.references, (_OWN, schema.text)]
    decoded = [_decoded(text) for _, text in texts]
    if any(one is not None for one in decoded):
        for (name, _), one in zip(texts, decoded, strict=True):
            if one is None:
                raise ValueError("the schema and what it refers to are in two forms, text and descriptors")
            if name != _OWN:
                one.name = name
        return decoded
    return _compiled(texts)


def _decoded(text: str) -> Any:
    """The descriptor in base64; None for a text."""
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(binascii.a2b_base64(text, strict_mode=True))
    except (ValueError, DecodeError):
        return None


def _compiled(texts: list[tuple[str, str]]) -> list[Any]:
    from grpc_tools import protoc  # 20 ms, and only for those who have texts

    with tempfile.TemporaryDirectory() as directory, as_file(files("grpc_tools") / "_proto") as well_known:
        root = Path(directory, "in")
        for name, text in texts:
            if not _PATH.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a file to import")
            file = root / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        made, said = Path(directory, "made"), Path(directory, "said")
        command = ["protoc", f"-I{root}", f"-I{well_known}", "--include_imports", f"--descriptor_set_out={made}", _OWN]
        with open(said, "wb") as errors:
            kept = os.dup(2)
            os.dup2(errors.fileno(), 2)
            try:
                status = protoc.main(command)
            finally:
                os.dup2(kept, 2)
                os.close(kept)
        if status:
            raise ValueError(said.read_text(errors="replace").replace(f"{_OWN}:", "line ").strip())
        return list(descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file)


def _indexes(payload: bytes) -> tuple[list[int], int]:
    """The way to the message, and where it begins."""
    count, at = _zigzag(payload, 0)
    if count == 0:
        return [0], at
    if not 0 < count <= INDEXES_MAX:
        raise Unfit(f"{count} message indexes")
    indexes = []
    for _ in range(count):
        index, at = _zigzag(payload, at)
        indexes.append(index)
    return indexes, at


def _zigzag(payload: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(payload) or shift > 28:
            raise Unfit("no message indexes")
        byte = payload[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
