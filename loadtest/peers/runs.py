"""The files of a run: one for each result. What is there is not measured again.

    about.json                      what is run, where, and when (one window for each time it was gone on with)
    synced-0-batched-kafka-...json  {"round", "durability", "step", "peer", "level", "client", numbers or "failed"}

Every file appears with its whole content (written beside, then renamed), so a run may be cut off at any moment.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from loadtest.peers.peer import Durability
from loadtest.peers.plan import PARTS, Turn
from loadtest.peers.session import Result

ABOUT = "about.json"
SAME_IN_ALL_WINDOWS = ("rounds", "quick", "peers", "versions")


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
        found = self._about()
        wanted = orjson.loads(orjson.dumps(about))
        if other := [name for name in SAME_IN_ALL_WINDOWS if found.get(name) != wanted[name]]:
            raise OtherPlan(
                f"the results there differ in {', '.join(other)}: run without --resume, or with other --runs"
            )
        parts = [part for part in PARTS if part in found["parts"] or part in wanted["parts"]]
        steps = {**found["steps"], **wanted["steps"]}
        self._write(ABOUT, {**found, "parts": parts, "steps": steps, "windows": [*found["windows"], window]})

    @property
    def parts(self) -> list[str]:
        """What is run, parts of earlier windows included."""
        return list(self._about()["parts"])

    def is_done(self, turn: Turn) -> bool:
        """Whether a turn needs no running."""
        return self._file(turn).exists()

    def add(self, turn: Turn, result: Result) -> None:
        """What a turn came to."""
        row = {
            "round": turn.number,
            "durability": turn.row.level.durability,
            "step": turn.step.name,
            "peer": turn.row.peer,
            "level": turn.row.level.name,
            "client": turn.row.client,
            **result,
        }
        self._write(self._file(turn).name, row)

    def add_idle(self, durability: Durability, shares: Mapping[str, float]) -> None:
        """What the servers of a fleet take when nothing is asked of them, in cores."""
        about = self._about()
        window = {**about["windows"][-1]}
        window["idle"] = {**window.get("idle", {}), durability.value: shares}
        self._write(ABOUT, {**about, "windows": [*about["windows"][:-1], window]})

    def expected_s(self, turn: Turn) -> float:
        """How long a turn may take: as long as its step took at most so far, of the same row if it is there."""
        done = [orjson.loads(file.read_bytes()) for file in self.directory.glob(f"*-{turn.step.name}-*.json")]
        same = [one for one in done if one["peer"] == turn.row.peer and one["client"] == turn.row.client]
        return max((one["turn_s"] for one in same or done), default=turn.step.expected_s)

    def _about(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads((self.directory / ABOUT).read_bytes())
        return found

    def _file(self, turn: Turn) -> Path:
        return self.directory / f"{turn.stem}.json"

    def _write(self, name: str, content: object) -> None:
        beside = self.directory / f"{name}.new"
        beside.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
        os.replace(beside, self.directory / name)
