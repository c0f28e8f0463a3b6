"""gateway/main/memory.py: free pages are looked for when the process has grown, and only then."""

from __future__ import annotations

import asyncio
import ctypes
import platform

import pytest

from gateway.main import memory
from gateway.main.memory import GROWTH_BYTES, IDLE_SHARE, LOOKS_WHILE_LARGE, Trimming, resident_bytes, trimmer
from store.limits import MiB
from tests.waiting import until


def test_pages_are_returned_when_the_process_has_grown_since_the_last_time() -> None:
    sizes = iter([
        100 * MiB,
        100 * MiB + GROWTH_BYTES - 1,
        100 * MiB + GROWTH_BYTES, 110 * MiB,  # before and after
        110 * MiB,
        60 * MiB,
        60 * MiB + GROWTH_BYTES, 60 * MiB,
    ])  # fmt: skip
    trimmed: list[int] = []
    trimming = Trimming(lambda: trimmed.append(1), lambda: next(sizes))
    assert [trimming.look() for _ in range(5)] == [False, True, False, False, True]
    assert len(trimmed) == 2


def test_a_process_that_stays_large_is_looked_at_again_as_what_held_its_pages_may_be_free_by_now() -> None:
    size = 100 * MiB
    trimming = Trimming(lambda: None, lambda: size)
    size += 2 * GROWTH_BYTES
    assert [trimming.look() for _ in range(1 + 2 * LOOKS_WHILE_LARGE)] == [
        True,
        *([False] * (LOOKS_WHILE_LARGE - 1) + [True]) * 2,
    ]
    size = 100 * MiB + GROWTH_BYTES - 1
    assert not any(trimming.look() for _ in range(2 * LOOKS_WHILE_LARGE))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps free pages")
def test_glibc_returns_what_is_free() -> None:
    trim = trimmer()
    assert trim is not None
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = (ctypes.c_size_t,)
    libc.free.argtypes = (ctypes.c_void_p,)
    blocks = [libc.malloc(100_000) for _ in range(1000)]
    for block in blocks:
        ctypes.memset(block, 1, 100_000)
    for block in blocks[:-1]:  # the last one keeps the heap from shrinking by itself
        libc.free(block)
    before = resident_bytes()
    trim()
    assert resident_bytes() < before - 50 * MiB
    libc.free(blocks[-1])


async def test_without_such_a_library_no_pages_are_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: object())
    assert trimmer() is None
    monkeypatch.setattr(memory, "LOOK_S", 0.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await memory.give_back_forever()  # goes on, and thaws


async def test_only_a_process_that_has_next_to_nothing_to_do_is_stopped_for_a_thaw(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[bool] = []
    limit_s = IDLE_SHARE * 0.01
    used_s = iter([0.0, limit_s - 1e-6, 0.0, limit_s, 0.0])

    class Looked:
        def look(self, *, is_idle: bool) -> None:
            looks.append(is_idle)

    monkeypatch.setattr(memory, "LOOK_S", 0.01)
    monkeypatch.setattr(memory, "Thawing", Looked)
    monkeypatch.setattr(memory, "trimmer", lambda: None)
    monkeypatch.setattr(memory, "look_at_young", lambda: None)
    monkeypatch.setattr(memory.time, "process_time", lambda: next(used_s, 0.0))
    task = asyncio.create_task(memory.give_back_forever())
    await until(lambda: len(looks) >= 2, pause_s=0.001)
    task.cancel()
    assert looks[:2] == [True, False]
