"""What a process that converts is asked and answers, and its bounds. Both sides read this.

asked       4 bytes of length, then a `Request` in MessagePack
answered    for each value, in order: a byte (DONE, UNFIT, LATER), 4 bytes of length, and what was made of it, or why
            not. LATER ends the answer: the values from this one on were not looked at
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec

from store.limits import KiB, MiB

MEMORY_BYTES_MAX = 384 * MiB
"""Of one such process, libraries included. What needs more is not converted."""

VALUE_CPU_S = 3
"""Processor time for one value; the kernel ends a process that takes longer."""

REQUEST_S = 10.0
"""For all values of a request. What is left then is LATER, but for the first one."""

ANSWER_BYTES_MAX = 16 * MiB
"""Of what is made in one request: one value that is larger is UNFIT, what comes behind others is LATER."""

SCHEMA_BYTES_MAX = 256 * KiB
"""Of a schema with all that it refers to."""

REFERENCES_MAX = 64
"""Schemas that a schema refers to, directly or not."""

PARSED_MAX = 64
"""Schemas that a process keeps parsed."""

NO_MEMORY = 3
"""The exit status of a process that could not get the memory for a value."""

ASKED = Struct(">I")
ANSWERED = Struct(">BI")
DONE, UNFIT, LATER = range(3)
WRITTEN_BYTES = 64 * KiB
"""Of answers that are written at once."""


class Unfit(Exception):
    """A value that is not of its schema; the text says where."""


class SchemaText(msgspec.Struct, frozen=True, array_like=True):
    """A schema as the registry has it, and what it refers to by name: what others need comes first."""

    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @property
    def size_bytes(self) -> int:
        """Of all its texts, as Python holds them at least."""
        return len(self.text) + sum(len(name) + len(text) for name, text in self.references)


class Request(msgspec.Struct, frozen=True, array_like=True):
    """Values to convert, each with the number of its schema. `act`: serialize, deserialize, or name: of each schema the
    name of its record, the values are empty. `one_by_one`: say what has become of each value before the next one is
    begun, so that it is known at which of them the process ends; else many answers are written at once."""

    act: str
    schemas: Sequence[SchemaText]
    values: Sequence[tuple[int, bytes]]
    one_by_one: bool = False
