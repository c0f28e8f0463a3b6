"""fdatasync without a thread: the kernel does it beside the event loop, and says by an eventfd when it is done.

A thread that syncs must get the interpreter's lock before it can begin, and again before it can say that it is done.
While the loop is busy it waits longer for that than for the disk: docs/decisions/0018-small-groups-are-synced-by-the-
kernel.md. Linux's asynchronous I/O has an operation of its own for it, IOCB_CMD_FDSYNC (Linux 4.18): the same
`vfs_fsync` of the same open file, in a thread of the kernel, with the same errors. io_submit(2), io_getevents(2), and
struct iocb of <linux/aio_abi.h>:

    0          8      12        16      18        20    24       32        40        48         56      60     64
    +----------+------+---------+-------+---------+-----+--------+---------+---------+----------+-------+------+
    |data u64  |key   |rw_flags |opcode |reqprio  |fd   |buf u64 |nbytes   |offset   |reserved  |flags  |resfd |
    |          |u32   |u32      |u16 = 3|i16      |u32  |        |u64      |i64      |u64       |u32 = 1|u32   |
    +----------+------+---------+-------+---------+-----+--------+---------+---------+----------+-------+------+

    struct io_event: data u64, obj u64, result i64 (0, or minus an errno), result 2 i64

The kernel's thread works on the processor that submitted, which belongs to the loop; a loop that is busy keeps it
waiting until the next tick of the scheduler, milliseconds. So the loop yields when a sync takes long; not before:
what gathers meanwhile is the next group. Work in the background yields at once, between two pieces of it
(`yield_to_loop`): no request gathers while it is being done.

Where the system has none of this (no Linux, an old kernel, a sandbox that forbids it, a file system without the
operation) there is no `KernelSync`, or it begins nothing; then a thread syncs.

Invariants
    K1  one sync at a time; `close` waits for one that is under way
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import platform
import struct
import time

_IOCB = struct.Struct("=QIIHhIQQqQII")
assert _IOCB.size == 64
_EVENT = struct.Struct("=QQqq")
_FDSYNC, _FLAG_RESFD = 3, 1
_CALLS = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}
"""Numbers of io_setup, io_destroy, io_submit, io_getevents, by machine."""

LATE_S = 2e-3
"""A sync that takes longer may be waiting for the loop."""

IDLE_TURN_S = 50e-6
"""A turn of the loop that was shorter had nothing to do: while it waits, no caller waits for it."""

_libc = ctypes.PyDLL(None, use_errno=True)  # none of these calls waits: they need not give up the interpreter's lock


class KernelSync:
    """Syncs files for one event loop. All methods belong to its thread."""

    def __init__(self, context: ctypes.c_ulong, calls: tuple[int, int, int, int]) -> None:
        _, self._destroy, self._submit, self._getevents = calls
        self._context = context
        self._iocb = ctypes.create_string_buffer(_IOCB.size)
        self._iocbs = (ctypes.c_void_p * 1)(ctypes.addressof(self._iocb))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._no_time = ctypes.create_string_buffer(16)
        self._outcome: asyncio.Future[None] | None = None
        self._late: asyncio.Handle | None = None  # calls `_is_late`
        self._loop = asyncio.get_running_loop()
        self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._loop.add_reader(self._eventfd, self._ended)

    @classmethod
    def open(cls) -> KernelSync | None:
        """For the running loop; None where the system has no such thing."""
        calls = _CALLS.get(platform.machine())
        if calls is None or platform.system() != "Linux" or ctypes.sizeof(ctypes.c_void_p) != 8:
            return None
        context = ctypes.c_ulong(0)
        if _libc.syscall(ctypes.c_long(calls[0]), ctypes.c_long(1), ctypes.byref(context)):
            return None
        return cls(context, calls)

    def begin(self, fd: int) -> asyncio.Future[None] | None:
        """Begin an fdatasync of an open file. The future raises OSError as `os.fdatasync` does. None, and nothing is
        begun, when the system cannot do it for this file."""
        assert self._outcome is None, "K1"
        _IOCB.pack_into(self._iocb, 0, 0, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, _FLAG_RESFD, self._eventfd)
        if _libc.syscall(ctypes.c_long(self._submit), self._context, ctypes.c_long(1), self._iocbs) != 1:
            return None
        self._outcome = self._loop.create_future()
        self._late = self._loop.call_later(LATE_S, self._is_late, 0.0)
        return self._outcome

    def yield_to_loop(self) -> None:
        """Let the kernel's thread have this processor, if a sync is under way."""
        if self._outcome is not None:
            os.sched_yield()

    def _is_late(self, last_s: float) -> None:
        """Yield in every turn of a loop that is busy, until the sync is done."""
        self.yield_to_loop()
        now_s = time.perf_counter()
        if now_s - last_s > IDLE_TURN_S:
            self._late = self._loop.call_soon(self._is_late, now_s)
        else:
            self._late = self._loop.call_later(LATE_S, self._is_late, 0.0)

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is under way."""
        return self._outcome is not None

    def _ended(self) -> None:
        os.eventfd_read(self._eventfd)
        if self._late is not None:
            self._late.cancel()
        result = self._result()
        outcome, self._outcome = self._outcome, None
        assert outcome is not None
        if outcome.done():
            return  # who waited has given up
        if result:
            outcome.set_exception(OSError(-result, os.strerror(-result)))
        else:
            outcome.set_result(None)

    def _result(self) -> int:
        """What the sync that has ended came to: 0, or minus an errno."""
        count = _libc.syscall(
            ctypes.c_long(self._getevents), self._context,
            ctypes.c_long(1), ctypes.c_long(1), self._event, self._no_time,
        )  # fmt: skip
        assert count == 1
        _, _, result, _ = _EVENT.unpack(self._event)
        return int(result)

    def close(self) -> None:
        """Give everything back. Blocks while a sync is under way (K1)."""
        if self._late is not None:
            self._late.cancel()
        self._loop.remove_reader(self._eventfd)
        _libc.syscall(ctypes.c_long(self._destroy), self._context)
        os.close(self._eventfd)
