"""A process that converts values, one request after the other, until its parent closes the pipe: `python -m
gateway.schemas.child DIRECTORY`, for files that are needed for a moment. See `request.py` for what is said.

Its bounds are the kernel's: memory (RLIMIT_AS), and processor time a value (a timer whose signal ends the process, also
within a C library). The parent then knows which value it was, and begins another one.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgspec

from gateway.schemas.request import (
    ANSWER_BYTES_MAX,
    ANSWERED,
    ASKED,
    DONE,
    LATER,
    MEMORY_BYTES_MAX,
    NO_MEMORY,
    PARSED_MAX,
    REQUEST_S,
    UNFIT,
    VALUE_CPU_S,
    WRITTEN_BYTES,
    Request,
    SchemaText,
)

WHY_CHARS_MAX = 500


class Codec(Protocol):
    """One parsed schema."""

    @property
    def name(self) -> str | None:
        """Of its record."""
        ...

    def serialize(self, value: bytes) -> bytes:
        """JSON to the binary form."""
        ...

    def deserialize(self, payload: bytes) -> bytes:
        """The binary form to JSON."""
        ...


Parse = Callable[[SchemaText], Codec]


def parse(schema: SchemaText) -> Codec:
    """The codec of a schema; the library of its format is loaded when it is first needed. Raises any Exception."""
    if schema.format == "avro":
        from gateway.schemas.avro import Avro

        return Avro(schema)
    if schema.format == "jsonschema":
        from gateway.schemas.json_schema import JsonSchema

        return JsonSchema(schema)
    from gateway.schemas.protobuf import Protobuf

    return Protobuf(schema)


class Codecs:
    """Schemas that are parsed; those used last stay."""

    def __init__(self, parse: Parse = parse, *, count_max: int = PARSED_MAX) -> None:
        self._parse = parse
        self._count_max = count_max
        self._kept: OrderedDict[SchemaText, Codec] = OrderedDict()

    def of(self, schema: SchemaText) -> Codec:
        """The codec of a schema. Raises any Exception."""
        codec = self._kept.pop(schema, None) or self._parse(schema)
        self._kept[schema] = codec
        if len(self._kept) > self._count_max:
            self._kept.popitem(last=False)
        return codec


def convert(codecs: Codecs, act: str, schema: SchemaText, value: bytes) -> tuple[int, bytes]:
    """What becomes of one value. Raises MemoryError."""
    try:
        codec = codecs.of(schema)
    except MemoryError:
        raise
    except Exception as error:
        return UNFIT, _why("Invalid schema", error)
    try:
        if act == "name":
            return (UNFIT, b"the schema has no name") if codec.name is None else (DONE, codec.name.encode())
        made = codec.serialize(value) if act == "serialize" else codec.deserialize(value)
    except MemoryError:
        raise
    except RecursionError:
        return UNFIT, b"nested too deep"
    except Exception as error:
        return UNFIT, _why("", error)
    if len(made) > ANSWER_BYTES_MAX:
        return UNFIT, b"it has more than %d bytes in this form" % ANSWER_BYTES_MAX
    return DONE, made


def answer(
    codecs: Codecs, request: Request, write: Callable[[bytearray], None], *, next_value: Callable[[], None]
) -> None:
    """Answer one request. `next_value` is called before each value."""
    begun_s = time.monotonic()
    size = 0
    said = bytearray()
    for number, (index, value) in enumerate(request.values):
        next_value()
        if number and time.monotonic() - begun_s > REQUEST_S:
            said += ANSWERED.pack(LATER, 0)
            break
        status, made = convert(codecs, request.act, request.schemas[index], value)
        if number and size + len(made) > ANSWER_BYTES_MAX:
            said += ANSWERED.pack(LATER, 0)
            break
        size += len(made)
        said += ANSWERED.pack(status, len(made))
        said += made
        if request.one_by_one or len(said) >= WRITTEN_BYTES:
            write(said)
            said = bytearray()
    if said:
        write(said)


def _why(what: str, error: Exception) -> bytes:
    text = " ".join(str(error).split())[:WHY_CHARS_MAX] or error.__class__.__name__
    return (f"{what}: {text}" if what else text).encode(errors="replace")


def main() -> None:
    """Answer until the pipe is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # also sent to a whole process group: the parent says when
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    with suppress(OSError):  # where memory is short, this process is ended and not its server
        Path("/proc/self/oom_score_adj").write_text("1000")
    _limit(resource.RLIMIT_AS, MEMORY_BYTES_MAX)
    _limit(resource.RLIMIT_CORE, 0)
    directory = sys.argv[1]
    os.environ["TMPDIR"] = directory
    codecs = Codecs()
    decoder = msgspec.msgpack.Decoder(Request)
    while head := _read(ASKED.size):
        request = decoder.decode(_read(ASKED.unpack(head)[0]))
        try:
            answer(codecs, request, _write, next_value=_start_timer)
        except MemoryError:  # what is held now is not known: another process goes on
            os._exit(NO_MEMORY)
        signal.setitimer(signal.ITIMER_PROF, 0)
    with suppress(OSError):
        os.rmdir(directory)  # its parent, if it was killed, does not


def _limit(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (most, most))


def _start_timer() -> None:
    signal.setitimer(signal.ITIMER_PROF, VALUE_CPU_S)


def _read(count: int) -> bytes:
    """So many bytes of the pipe; none at its end."""
    parts: list[bytes] = []
    while count:
        part = os.read(0, min(count, 1 << 20))
        if not part:
            return b""
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _write(data: bytearray) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
