"""wrk as the load client, where it is installed: written in C, it takes less of the machine than any Python client."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.request import Load, Request, RunFailed

_SCRIPT = Path(__file__).with_name("wrk.lua")
LAST_ANSWERS_TIMEOUT_S = 15.0


class WrkClient:
    """Runs the wrk found on the PATH, with one thread: the server needs the other core."""

    name = "wrk, one thread"

    def __init__(self, executable: str) -> None:
        self._executable = executable

    @classmethod
    def find(cls) -> WrkClient | None:
        """None where wrk is not installed."""
        executable = shutil.which("wrk")
        return None if executable is None else cls(executable)

    async def drive(
        self, url: str, request: Request, *, connections: int, duration_s: float, each: Sequence[bytes] = ()
    ) -> Load:
        """See `LoadClient`. wrk counts time in whole seconds: `duration_s` is rounded up. `each`: whole requests that
        are sent in turn, in place of the one."""
        whole_s = math.ceil(duration_s)
        with tempfile.NamedTemporaryFile(prefix="mq-bench-body-") as body:
            body.write(b"".join(b"%d\n%b" % (len(one), one) for one in each) or request.body)
            body.flush()
            headers = ["EACH"] if each else [part for header in request.headers.items() for part in header]
            # fmt: off
            process = await asyncio.create_subprocess_exec(
                self._executable, "-t1", f"-c{connections}", f"-d{whole_s}s", "-s", str(_SCRIPT), url + request.target,
                "--", request.method, body.name, *headers,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            )
            # fmt: on
            try:
                async with asyncio.timeout(whole_s + LAST_ANSWERS_TIMEOUT_S):
                    output, _ = await process.communicate()
            except TimeoutError:
                raise RunFailed("wrk did not end") from None
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        return parse(output.decode(errors="replace"))


def parse(output: str) -> Load:
    """The line that the script writes when it is done. Raises RunFailed when there is none."""
    for line in output.splitlines():
        if line.startswith("RESULT "):
            requests, errors, duration_us, p50_us, p99_us = map(int, line.split()[1:])
            return Load(requests, errors, duration_us / 1e6, p50_us / 1e3, p99_us / 1e3)
    raise RunFailed(f"wrk failed: {output.strip()[-500:]}")
