"""A wall clock that lies to the processes of a test: libfaketime is between them and the clock. Monotonic time stays
true."""

from __future__ import annotations

from pathlib import Path

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
MISSING = "needs libfaketime; install it with: apt-get install faketime"


class FakedClock:
    """The clock of all processes that run in its `environment`."""

    def __init__(self, path: Path) -> None:
        """`path`: a file that says the time; it is made."""
        self._path = path
        self.set("+0")
        self.environment = {
            "LD_PRELOAD": str(LIBRARIES[0]),
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",  # the name it had before
            "NO_FAKE_STAT": "1",
            "TZ": "UTC",
        }

    def set(self, text: str) -> None:
        """An offset ("+3600"), an offset and a speed ("+0 x10"), or a moment, at which it stands still."""
        beside = self._path.with_suffix(".new")
        beside.write_text(text + "\n")
        beside.rename(self._path)
