"""A converter in the test's own process: what the children do, without their bounds."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.schemas import Converted, Unreadable
from gateway.schemas.child import Codecs, answer
from gateway.schemas.converter import Converter
from gateway.schemas.request import ANSWERED, DONE, LATER, Request, SchemaText


class HereConverter(Converter):
    """`values_max`: of one request; what comes behind them is left for later."""

    def __init__(self) -> None:
        super().__init__()
        self.codecs = Codecs()
        self.values_max = 1_000_000
        self.request_count = 0

    async def convert(
        self, act: str, schemas: Sequence[SchemaText], values: Sequence[tuple[int, bytes]]
    ) -> list[Converted]:
        self.request_count += bool(values)
        said: list[bytes] = []
        answer(self.codecs, Request(act, schemas, values[: self.values_max]), said.append, next_value=lambda: None)
        made: list[Converted] = []
        for one in said:
            status, size = ANSWERED.unpack_from(one)
            if status == LATER:
                break
            data = one[ANSWERED.size :]
            assert len(data) == size
            made.append(data if status == DONE else Unreadable(data.decode()))
        return made
