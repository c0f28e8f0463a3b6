"""Many seeds in one test: a parametrized test costs some milliseconds of pytest's for each."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def each_seed(count: int) -> Callable[[Callable[[int], Any]], Callable[[], Any]]:
    """Run a test, async or not, with each seed from 0 on; a failure names its seed."""

    def made(test: Callable[[int], Any]) -> Callable[[], Any]:
        async def each_awaited() -> None:
            for seed in range(count):
                try:
                    await test(seed)
                except Exception as error:
                    error.add_note(f"seed {seed}")
                    raise

        def each() -> None:
            for seed in range(count):
                try:
                    test(seed)
                except Exception as error:
                    error.add_note(f"seed {seed}")
                    raise

        run = each_awaited if inspect.iscoroutinefunction(test) else each
        run.__name__, run.__qualname__, run.__doc__ = test.__name__, test.__qualname__, test.__doc__
        run.__module__ = test.__module__
        return run

    return made
