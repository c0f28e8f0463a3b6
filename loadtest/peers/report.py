"""The report, made from the files of a run and from nothing else: peers.json, peers.md, and a chart of each work.

A cell is the median of the rounds and their range. A ratio compares a row with the one row of mq that the work names
(`Line.ours`), of the same durability, round by round; its median and range are shown. One whose range holds 1 is
"level": no claim. A row with a failed round says how many, and why; a row in which every round failed has no number.
Why we are behind somewhere is no number either: people write it into peers-why.md, which is taken into the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from loadtest.bench.machine import described
from loadtest.charts import Measured, ranges
from loadtest.stats import Spread, spread

FORMAT = 3
WHY = "peers-why.md"
OURS = "mq"
PROGRAMS, PEOPLE = "aiohttp, record batches", "aiohttp, JSON"
DURABILITY_TEXT = {
    "synced": "a disk sync behind every acknowledged record",
    "written": "written to the operating system before the answer",
}
ALONE, CLIENT = "The server alone", "With its client"
CHAPTER_TEXT = {
    ALONE: "Prebuilt bytes replayed in and raw bytes fetched out, by wrk or by one client whose cost is per batch.",
    CLIENT: "The benchmark tool that a peer comes with, and the Python client that its users take; each is a row.",
}


class Line(NamedTuple):
    """One table: the measure that is compared, and how it reads."""

    chapter: str
    step: str
    title: str
    measure: str
    unit: str
    lower_is_better: bool
    ours: str
    """The client of mq's row that is compared. It is named here, whatever the others come to."""

    about: str


LINES = (
    Line(ALONE, "single", "One record a request over HTTP, 32 connections", "records_per_s", "records/s", False,
         "wrk", "Values of 100 bytes, by wrk."),
    Line(ALONE, "replay", "A prebuilt batch again and again", "records_per_s", "records/s", False, "prebuilt bytes",
         "1,000 values of 100 bytes; 4 connections, each sending when its last answer is whole."),
    Line(ALONE, "fetch", "Raw bytes fetched", "records_per_s", "records/s", False, "raw bytes",
         "1,000,000 values of 100 bytes in batches of 1,000, from the start, up to 1 MiB an answer, one connection."),
    Line(CLIENT, "batched", "Batches of 1,000", "records_per_s", "records/s", False, PROGRAMS,
         "Values of 100 bytes, four batches unanswered at any time, one partition. Tools batch as they do by their "
         "settings."),
    Line(CLIENT, "scan", "Scan from the start", "records_per_s", "records/s", False, PROGRAMS,
         "What the row above sent, again and again, without acks; from the first piece of a pass to its last."),
    Line(CLIENT, "receive", "Work queue, every record acknowledged", "records_per_s", "records/s", False, PEOPLE,
         "Filled before; from the first piece until it is empty or the time is over."),
    Line(CLIENT, "singles", "Single records to 10 topics", "records_per_s", "records/s", False, PROGRAMS,
         "64 unanswered at any time."),
    Line(CLIENT, "push", "Send to push, 2,000 records/s", "p99_ms", "ms, p99", True, PROGRAMS,
         "Single records on a timetable, from before the send to the reader's hand."),
    Line(CLIENT, "delayed", "Delayed records: lateness", "p99_ms", "ms, p99", True, PEOPLE,
         "All accepted before the first is due; from the due time to the reader's hand."),
    Line(CLIENT, "delayed", "Delayed records: accepted", "accepted_per_s", "records/s", False, PEOPLE,
         "In batches of 1,000, four unanswered."),
    Line(CLIENT, "topics_10000", "Single records over many topics", "records_per_s", "records/s", False, PEOPLE,
         "64 unanswered; a round over all topics."),
    Line(CLIENT, "topics_10000", "Making many topics", "made_per_s", "topics/s", False, PEOPLE,
         "64 at a time, a record in each."),
    Line(CLIENT, "delayed_million", "Many delayed records: lateness", "p99_ms", "ms, p99", True, PEOPLE,
         "All accepted before the first is due; from the due time to the reader's hand."),
    Line(CLIENT, "delayed_million", "Many delayed records: accepted", "accepted_per_s", "records/s", False, PEOPLE,
         "In batches of 1,000, four unanswered."),
    Line(CLIENT, "restart", "kill -9 with a full log, first record read again", "first_record_ms", "ms", True, PROGRAMS,
         "Values of 1 KiB in one topic; from the start of the new process until a client has the first record."),
)  # fmt: skip


class Row(NamedTuple):
    """One client of one peer at one level in one work: all rounds, by round."""

    peer: str
    level: str
    client: str
    durability: str
    results: Mapping[int, Mapping[str, Any]]

    @property
    def key(self) -> str:
        """What tells it from the other rows of a work."""
        return f"{self.peer}, {self.level}, {self.client}"

    def values(self, measure: str) -> dict[int, float]:
        """Rounds that have a number."""
        return {number: float(result[measure]) for number, result in self._good() if measure in result}

    def costs(self, cost: Callable[[Mapping[str, Any]], float]) -> list[float]:
        """What a function makes of each round that has the numbers it needs."""
        found = []
        for _, result in self._good():
            try:
                found.append(cost(result))
            except (KeyError, ZeroDivisionError):  # a restart has no window, a work may count no records
                continue
        return found

    def limits(self) -> str:
        """What limited it, in how many rounds."""
        counts = Counter(str(result["limit"]) for _, result in self._good() if "limit" in result)
        if len(counts) < 2:
            return "".join(counts)
        return ", ".join(f"{name} ({count})" for name, count in counts.most_common())

    def failures(self) -> list[str]:
        return [str(result["failed"]) for result in self.results.values() if "failed" in result]

    def _good(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        return ((number, result) for number, result in self.results.items() if "failed" not in result)


class Ratio(NamedTuple):
    """How many times better ours is, over the rounds that both have."""

    value: Spread
    round_count: int

    @property
    def is_level(self) -> bool:
        """Whether the range holds 1."""
        return self.value.low <= 1 <= self.value.high

    @property
    def is_behind(self) -> bool:
        return self.value.high < 1


OF_THE_WINDOW = ("records_per_s", "p99_ms")
"""Measures of what happens within the window of which CPU and limit are taken."""

COSTS: Sequence[tuple[str, Callable[[Mapping[str, Any]], float]]] = (
    ("server CPU, µs a record", lambda result: result["server_cpu_s"] / result["records"] * 1e6),
    ("kernel threads, µs a record", lambda result: result["kernel_cpu_s"] / result["records"] * 1e6),
    ("client CPU / wall", lambda result: result["client_cpu_s"] / result["window_s"]),
)


def write_report(runs: Path, out: Path) -> None:
    """From a directory of runs to a directory of documents."""
    about = orjson.loads((runs / "about.json").read_bytes())
    results = [orjson.loads(file.read_bytes()) for file in sorted(runs.glob("*-*.json"))]
    out.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, **about, "results": results}
    (out / "peers.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    why = out / WHY
    (out / "peers.md").write_text(markdown(about, results, why.read_text() if why.exists() else ""))
    for chart in out.glob("peers-*.svg"):  # of workloads that are no longer measured
        chart.unlink()
    draw(about, results, out)


def rows_of(results: Sequence[Mapping[str, Any]], step: str) -> list[Row]:
    """All rows of a work: ours first, then by peer."""
    found: dict[tuple[str, ...], dict[int, Mapping[str, Any]]] = {}
    for result in results:
        if result["step"] == step:
            key = tuple(result[name] for name in ("peer", "level", "client", "durability"))
            found.setdefault(key, {})[result["round"]] = result
    rows = [Row(peer, level, client, durability, rounds) for (peer, level, client, durability), rounds in found.items()]
    return sorted(rows, key=lambda row: (row.peer != OURS, row.peer, row.level, row.client))


def ratio(line: Line, row: Row, rows: Sequence[Row]) -> Ratio | None:
    """None for our own rows, and where no round has both numbers."""
    named = [one for one in rows if one.peer == OURS and one.client == line.ours and one.durability == row.durability]
    if row.peer == OURS or not named:
        return None
    ours, theirs = named[0].values(line.measure), row.values(line.measure)
    pairs = [(ours[number], theirs[number]) for number in sorted(ours.keys() & theirs.keys())]
    found = [their / our if line.lower_is_better else our / their for our, their in pairs if our and their]
    return Ratio(spread(found), len(found)) if found else None


def ratios(results: Sequence[Mapping[str, Any]], limits: Sequence[str]) -> Iterator[tuple[Line, Row, Ratio]]:
    """Every row that is compared. `limits`: names of peers that are no queues."""
    for line in LINES:
        rows = rows_of(results, line.step)
        for row in rows:
            if row.peer not in limits and (found := ratio(line, row, rows)):
                yield line, row, found


def limits_of(about: Mapping[str, Any]) -> list[str]:
    """Peers that are no queues."""
    return [name for name, peer in about["peers"].items() if peer["is_limit"]]


def markdown(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]], why: str = "") -> str:
    """The page."""
    lines = [*_opening(about), *_chapters(about, results), *_behind(about, results, why), *_conditions(about, results)]
    return "\n".join(lines) + "\n"


def _opening(about: Mapping[str, Any]) -> Iterator[str]:
    yield "# Beside its peers"
    yield ""
    yield "Written by `make bench-peers` from the files of the run (all of them: `peers.json`). Servers and clients are"
    yield "processes of their own on one machine, on loopback. Only rows of the same durability and the same work are"
    yield f"compared. A cell is the median of {about['rounds']} round(s) and their range; *n = 1*: measured once."
    yield ""
    yield "- **mq / it**: how many times better the row of mq that the work names (in bold) is, taken round by round:"
    yield "  median and range. For times it is theirs divided by ours. *level*: the range holds 1, so the rounds do not"
    yield "  tell who is ahead. Other rows of mq are shown and not compared."
    yield "- **CPU** is taken within the measured window. Kernel threads (syncs, writeback) are counted for the whole"
    yield "  machine, for every row alike. **client CPU / wall** above 1 is several threads."
    yield "- **limit**: *client*: it took 95 % of a core or more; *server*: its busiest thread did; *machine*: all"
    yield "  cores were used up (*disturbed*: by other programs too); *disk*: it was busy for half of the time or more;"
    yield "  *timetable*: sent at a fixed rate; *latency*: none of these. A row limited by its client says what that"
    yield "  client can do, not the server. CPU and limit are left out where the window is not what the table is about."
    yield ""


def _chapters(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for chapter, text in CHAPTER_TEXT.items():
        tables = [table for line in LINES if line.chapter == chapter for table in _table(line, about, results)]
        if tables:
            yield from (f"## {chapter}", "", text, "", *tables)


def _table(line: Line, about: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = rows_of(results, line.step)
    if not rows:
        return
    sizes = ", ".join(f"{name} {value:,}" for name, value in about["steps"].get(line.step, {}).items())
    yield from (f"### {line.title}", "", f"{line.about} ({sizes})", "")
    for durability, text in DURABILITY_TEXT.items():
        chosen = [row for row in rows if row.durability == durability]
        if not chosen:
            continue
        yield from (f"Durability: {text}.", "")
        costs = " | ".join(title for title, _ in COSTS)
        yield f"| peer, level | client | {line.unit} | mq / it | {costs} | limit | peak MB |"
        yield f"|---|---|---:|---:|{'---:|' * len(COSTS)}---|---:|"
        for row in chosen:
            yield _table_row(line, row, rows, limits_of(about))
        yield ""
    if any(row.values(line.measure) for row in rows):
        yield from (f"![{line.title}]({chart_name(line)})", "")


def _table_row(line: Line, row: Row, rows: Sequence[Row], limits: Sequence[str]) -> str:
    is_named = row.peer == OURS and row.client == line.ours
    name, client = _label(row, rows), row.client
    compared = "no queue" if row.peer in limits else _times(ratio(line, row, rows))
    is_of_window = line.measure in OF_THE_WINDOW
    costs = [_number(spread(found).median) if is_of_window and (found := row.costs(cost)) else "" for _, cost in COSTS]
    peak = row.costs(lambda result: result["server_peak_mb"])
    cells = [
        f"**{name}**" if is_named else name,
        f"**{client}**" if is_named else client,
        _value(line, row),
        compared,
        *costs,
        row.limits() if is_of_window else "",
        _number(max(peak)) if peak else "",
    ]
    return f"| {' | '.join(cells)} |"


def _label(row: Row, rows: Sequence[Row]) -> str:
    """A peer, with its level where it has several of the same durability."""
    levels = {one.level for one in rows if (one.peer, one.durability) == (row.peer, row.durability)}
    return f"{row.peer}, {row.level}" if len(levels) > 1 else row.peer


def _behind(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]], why: str) -> Iterator[str]:
    found = list(ratios(results, limits_of(about)))
    yield from ("## Where we are behind", "")
    behind = [one for one in found if one[2].is_behind]
    yield from (_listed(*one) for one in behind)
    if not behind:
        yield "In no row of this run."
    yield from ("", "Level, so neither ahead nor behind:", "")
    level = [one for one in found if one[2].is_level]
    yield from (_listed(*one) for one in level)
    if not level:
        yield "No row of this run."
    yield ""
    if why:
        yield from (why.strip(), "")


def _listed(line: Line, row: Row, found: Ratio) -> str:
    limits = row.limits() if line.measure in OF_THE_WINDOW else ""
    return f"- {line.title}, {row.durability}: {row.key}: {_shown(found)}{f'; limit: {limits}' if limits else ''}"


def _conditions(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield from ("## Conditions", "")
    yield f"- {described(about['machine'])}."
    yield f"- {', '.join(f'{name} {version}' for name, version in about['versions'].items())}."
    for window in about["windows"]:
        slow = f", {window['slowness']} times as slow as our reference" if "slowness" in window else ""
        commit, load_average = window["commit"], window["load_average"]
        yield f"- Measured from {window['started_at']}, commit {commit}, load average {load_average}{slow} before."
        for durability, shares in window.get("idle", {}).items():
            told = ", ".join(f"{name} {share * 100:.1f} %" for name, share in shares.items() if share >= 0.001)
            yield f"  - Idle servers, {durability}: {sum(shares.values()) * 100:.1f} % of one core in all ({told})."
    others = [one["others_cpu_s"] / one["window_s"] for one in results if one.get("window_s")]
    if others:
        shown = spread(others)
        yield (
            f"- CPU of everything else on the machine (idle servers, this harness, the system) within a row's window: "
            f"{shown.median * 100:.0f} % of one core at the median, {shown.high * 100:.0f} % at most."
        )
    for name, peer in about["peers"].items():
        yield f"- **{name}** {peer['version']}: {peer['about']}."
        for level, told in peer["levels"].items():
            yield f"  - *{level}* ({told['durability']}): {told['about']}."
    for name, reason in about["missing"].items():
        yield f"- **{name}**: not measured: {reason}."


def _value(line: Line, row: Row) -> str:
    values, failures = list(row.values(line.measure).values()), row.failures()
    if failures:
        reason = " ".join(failures[0].split())[:160].replace("|", "/")
        failed = f"failed {len(failures)} of {len(row.results)}: {reason}"
        return f"{_cell(values)}; {failed}" if values else failed
    return _cell(values)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = spread(values)
    if len(values) == 1:
        return f"{_number(middle.median)} (n = 1)"
    return f"{_number(middle.median)} ({_number(middle.low)} - {_number(middle.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(found: Ratio | None) -> str:
    if found is None:
        return ""
    return f"level: {_shown(found)}" if found.is_level else _shown(found)


def _shown(found: Ratio) -> str:
    value = found.value
    if found.round_count == 1:
        return f"{value.median:.2f}x (n = 1)"
    return f"{value.median:.2f}x ({value.low:.2f} - {value.high:.2f})"


def chart_name(line: Line) -> str:
    """Where the chart of a line is, beside the page."""
    return f"peers-{line.step}-{line.measure}.svg".replace("_", "-")


def draw(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """A chart of each line that has numbers."""
    for line in LINES:
        all_rows = rows_of(results, line.step)
        shown = [
            Measured(
                f"{_label(row, all_rows)}, {row.client}, {row.durability}",
                spread(list(row.values(line.measure).values())),
                row.peer == OURS,
            )
            for durability in DURABILITY_TEXT
            for row in all_rows
            if row.durability == durability and row.values(line.measure)
        ]
        if shown:
            label = f"{line.unit}{' (less is better)' if line.lower_is_better else ''}"
            (out / chart_name(line)).write_text(ranges(shown, x_label=label))
