"""The files of a run: one for each result, and one for each session that is complete. What is there is not run again.

    about.json                          what is run, where, and when (one window for each time it was gone on with)
    0-kafka-synced-works-batched.json   a result: {"round", "peer", "durability", "part", "step", numbers or "failed"}
    0-kafka-synced-works.done           the session is complete; holds the seconds it took

A session that was cut off has no `.done`: it is run again as a whole, and its files are replaced. Every file appears
with its whole content (written beside, then renamed).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from loadtest.peers.plan import PART_EXPECTED_S, PARTS, Session, Step
from loadtest.peers.session import Result

ABOUT = "about.json"
SAME_IN_ALL_WINDOWS = ("rounds", "steps", "peers", "versions")


class OtherPlan(Exception):
    """The directory holds another run. The message says what to do."""


class Runs:
    """A directory of results."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin(self, about: Mapping[str, Any], window: Mapping[str, Any]) -> None:
        """An empty directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._write(ABOUT, {**about, "windows": [window]})

    def resume(self, about: Mapping[str, Any], window: Mapping[str, Any]) -> None:
        """Go on with what is there, and with the parts that `about` adds; begin when nothing is. Raises OtherPlan."""
        if not (self.directory / ABOUT).exists():
            self.begin(about, window)
            return
        found = orjson.loads((self.directory / ABOUT).read_bytes())
        wanted = orjson.loads(orjson.dumps(about))
        if other := [name for name in SAME_IN_ALL_WINDOWS if found.get(name) != wanted[name]]:
            raise OtherPlan(
                f"the results there differ in {', '.join(other)}: run without --resume, or with other --runs"
            )
        parts = [part for part in PARTS if part in found["parts"] or part in wanted["parts"]]
        self._write(ABOUT, {**found, "parts": parts, "windows": [*found["windows"], window]})

    @property
    def parts(self) -> list[str]:
        """What is run, those of earlier windows included."""
        return list(orjson.loads((self.directory / ABOUT).read_bytes())["parts"])

    def is_done(self, session: Session) -> bool:
        """Whether a session needs no running."""
        return self._done(session).exists()

    def add(self, session: Session, step: Step, result: Result) -> None:
        """One result."""
        row = {
            "round": session.number,
            "peer": session.peer,
            "durability": session.durability,
            "part": session.part,
            "step": step.name,
            **result,
        }
        self._write(f"{session.stem}-{step.name}.json", row)

    def complete(self, session: Session, took_s: float) -> None:
        """All results of a session are there."""
        self._write(self._done(session).name, took_s)

    def expected_s(self, session: Session) -> float:
        """How long a session may take: as long as the longest of its part so far, of the same peer if there is one."""
        same = list(self.directory.glob(f"*-{session.peer.replace(' ', '_')}-*-{session.part}.done"))
        found = same or list(self.directory.glob(f"*-{session.part}.done"))
        return max((float(orjson.loads(file.read_bytes())) for file in found), default=PART_EXPECTED_S[session.part])

    def _done(self, session: Session) -> Path:
        return self.directory / f"{session.stem}.done"

    def _write(self, name: str, content: object) -> None:
        beside = self.directory / f"{name}.new"
        beside.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        os.replace(beside, self.directory / name)
