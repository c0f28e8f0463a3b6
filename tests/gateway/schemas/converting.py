"""A converter in the test's own process: what the children do, without their bounds."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.api.schemas import Converted
from gateway.schemas.child import Codecs, answer
from gateway.schemas.converter import Converter, _Answers
from gateway.schemas.request import Request, SchemaText


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
        asked = values[: self.values_max]
        made: list[Converted] = []
        answers = _Answers(made, len(asked))
        answer(
            self.codecs, Request(act, schemas, asked), lambda some: answers.add(bytes(some)), next_value=lambda: None
        )
        assert answers.left_count == 0
        return made
