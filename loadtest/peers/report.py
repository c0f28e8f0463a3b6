"""The report, made from the files of a run and from nothing else: peers.json, peers.md, and a chart of each work.

A cell is the median of the rounds and their range. A ratio is mq divided by the peer, taken round by round; the better
of mq's two rows counts against a peer, and both are shown. A row with a failed round says how many, and why; a row in
which every round failed has no number. Why we are behind somewhere is no number either: people write it into
peers-why.md, which is taken into the page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from loadtest.charts import Measured, ranges
from loadtest.stats import Spread, spread

FORMAT = 2
WHY = "peers-why.md"
OURS = "mq"
DURABILITY_TEXT = {
    "synced": "a disk sync behind every acknowledged batch",
    "unsynced": "no sync before the answer",
}


class Line(NamedTuple):
    """What one work is about: the measure that is compared, and how it reads."""

    step: str
    title: str
    measure: str
    unit: str
    lower_is_better: bool
    about: str


LINES = (
    Line("single", "One record a request over HTTP", "records_per_s", "records/s", False, "wrk, 32 connections."),
    Line(
        "batched", "Batches of 1,000", "records_per_s", "records/s", False,
        "Values of 100 bytes, four batches unanswered at any time, one partition.",
    ),
    Line(
        "consume", "Consume from the start", "records_per_s", "records/s", False,
        "What the row above sent, every record counted once; waiting for the reader to be connected included.",
    ),
    Line("push_200", "Send to push, 200 records/s", "p99_ms", "ms, p99", True, "Single records on a timetable."),
    Line("push_2000", "Send to push, 2,000 records/s", "p99_ms", "ms, p99", True, "Single records on a timetable."),
    Line(
        "delayed", "Delayed records: lateness", "p99_ms", "ms, p99", True,
        "All due within one second; from the due time to the reader's hand.",
    ),
    Line("delayed", "Delayed records: accepted", "accepted_per_s", "records/s", False, "Sent in batches of 1,000."),
    Line("topics_10", "Single records over 10 topics", "records_per_s", "records/s", False, "64 unanswered."),
    Line(
        "topics_10000", "Single records over 10,000 topics", "records_per_s", "records/s", False,
        "64 unanswered; a round over all of them.",
    ),
    Line("topics_10000", "Making 10,000 topics", "made_per_s", "topics/s", False, "64 at a time, a record in each."),
    Line(
        "delayed_million", "A million delayed records: lateness", "p99_ms", "ms, p99", True,
        "Accepted first, all of them, within 52 s; then due evenly within 60 s. From due to the reader's hand.",
    ),
    Line(
        "delayed_million", "A million delayed records: accepted", "accepted_per_s", "records/s", False,
        "In batches of 1,000, four unanswered.",
    ),
    Line(
        "restart", "kill -9 with 5 GiB, first record read again", "first_record_ms", "ms", True,
        "Values of 1 KiB in one topic; from the start of the new process until a client has the first record.",
    ),
)  # fmt: skip
COSTS = (("server_cpu_s_per_million", "CPU s per million records"), ("server_peak_rss_mb", "peak memory, MB"))


class Row(NamedTuple):
    """One peer at one durability in one work: all rounds, by round."""

    peer: str
    durability: str
    results: Mapping[int, Mapping[str, Any]]

    def values(self, measure: str) -> dict[int, float]:
        """Rounds that have a number."""
        return {
            number: float(result[measure])
            for number, result in self.results.items()
            if "failed" not in result and measure in result
        }

    def failures(self) -> list[str]:
        return [str(result["failed"]) for result in self.results.values() if "failed" in result]


def write_report(runs: Path, out: Path) -> None:
    """From a directory of runs to a directory of documents."""
    about = orjson.loads((runs / "about.json").read_bytes())
    results = [orjson.loads(file.read_bytes()) for file in sorted(runs.glob("*-*.json"))]
    out.mkdir(parents=True, exist_ok=True)
    document = {"format": FORMAT, **about, "results": results}
    (out / "peers.json").write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    why = out / WHY
    (out / "peers.md").write_text(markdown(about, results, why.read_text() if why.exists() else ""))
    draw(results, out)


def rows_of(results: Sequence[Mapping[str, Any]], step: str) -> list[Row]:
    """In the order in which they ran."""
    found: dict[tuple[str, str], dict[int, Mapping[str, Any]]] = {}
    for result in results:
        if result["step"] == step:
            found.setdefault((result["peer"], result["durability"]), {})[result["round"]] = result
    return [Row(peer, durability, rounds) for (peer, durability), rounds in found.items()]


def ratio(line: Line, row: Row, rows: Sequence[Row]) -> Spread | None:
    """How many times better our best row of the same durability is; None for our own rows, and without numbers."""
    theirs = row.values(line.measure)
    ours = [one.values(line.measure) for one in rows if is_ours(one.peer) and one.durability == row.durability]
    better = max if not line.lower_is_better else min
    found = []
    for number, value in theirs.items():
        mine = [values[number] for values in ours if number in values]
        if mine and value > 0:
            best = better(mine)
            found.append(value / best if line.lower_is_better else best / value)
    return spread(found) if found and not is_ours(row.peer) else None


def is_ours(peer: str) -> bool:
    return peer.partition(",")[0] == OURS


def markdown(about: Mapping[str, Any], results: Sequence[Mapping[str, Any]], why: str = "") -> str:
    """The page."""
    return "\n".join([*_opening(about), *_tables(results), *_losses(results, why), *_conditions(about)]) + "\n"


def _opening(about: Mapping[str, Any]) -> Iterator[str]:
    yield "# Beside its peers"
    yield ""
    yield "Written by `make bench-peers`, from files that the runs wrote (all of them: `peers.json`). The same work,"
    yield "payloads and machine for all; servers and clients are processes of their own, on loopback. A cell is the"
    yield f"median of {about['rounds']} rounds and their range; the long works (10,000 topics, a million delayed"
    yield "records, 5 GiB) were done once. *ahead*: our better row divided by the peer, round by round; above 1 we are"
    yield "ahead. Only rows of the same durability are compared."
    yield ""


def _tables(results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for line in LINES:
        rows = rows_of(results, line.step)
        if not rows:
            continue
        yield f"## {line.title}"
        yield ""
        yield line.about
        yield ""
        for durability, text in DURABILITY_TEXT.items():
            chosen = [row for row in rows if row.durability == durability]
            if not chosen:
                continue
            yield f"With {text}:"
            yield ""
            yield f"| peer | {line.unit} | ahead | {' | '.join(title for _, title in COSTS)} |"
            yield "|---|---:|---:|---:|---:|"
            for row in chosen:
                ahead = ratio(line, row, rows)
                costs = " | ".join(_cell(list(row.values(measure).values())) for measure, _ in COSTS)
                yield f"| {row.peer} | {_value(line, row)} | {_times(ahead)} | {costs} |"
            yield ""
        yield f"![{line.title}]({chart_name(line)})"
        yield ""


def _losses(results: Sequence[Mapping[str, Any]], why: str) -> Iterator[str]:
    yield "## Where we are behind"
    yield ""
    found = False
    for line in LINES:
        rows = rows_of(results, line.step)
        for row in rows:
            ahead = ratio(line, row, rows)
            if ahead is not None and ahead.median < 1:
                found = True
                yield f"- {line.title}, {row.peer} ({row.durability}): {_times(ahead)}"
    if not found:
        yield "Nowhere in this run."
    elif why:
        yield ""
        yield why.strip()
    yield ""


def _conditions(about: Mapping[str, Any]) -> Iterator[str]:
    machine = about["machine"]
    yield "## Conditions"
    yield ""
    sizes = "; ".join(
        f"{name} ({', '.join(f'{option} {value:,}' for option, value in options.items())})"
        for name, options in about["steps"].items()
    )
    yield f"- Sizes: {sizes}."
    yield (
        f"- {machine['cpu']}, {machine['cores']} cores, {machine['memory_gib']} GiB, Linux {machine['kernel']}, "
        f"{machine['file_system']}."
    )
    for window in about["windows"]:
        commit, load_average = window["commit"], window["load_average"]
        yield f"- Measured from {window['started_at']}, commit {commit}, load average {load_average}."
    for name, peer in about["peers"].items():
        yield f"- **{name}** {peer['version']}: {peer['about']}."
    for name, reason in about["missing"].items():
        yield f"- **{name}**: not measured: {reason}"


def _value(line: Line, row: Row) -> str:
    values, failures = list(row.values(line.measure).values()), row.failures()
    if failures:
        reason = " ".join(failures[0].split())[:160].replace("|", "/")
        failed = f"failed {len(failures)} of {len(row.results)}: {reason}"
        return f"{_cell(values)}; {failed}" if values else failed
    return _cell(values)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = spread(values)
    if len(values) == 1:
        return _number(middle.median)
    return f"{_number(middle.median)} ({_number(middle.low)} - {_number(middle.high)})"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _times(value: Spread | None) -> str:
    return "" if value is None else f"{value.median:.2f}x ({value.low:.2f} - {value.high:.2f})"


def chart_name(line: Line) -> str:
    """Where the chart of a line is, beside the page."""
    return f"peers-{line.step}-{line.measure}.svg".replace("_", "-")


def draw(results: Sequence[Mapping[str, Any]], out: Path) -> None:
    """A chart of each line that has numbers."""
    for line in LINES:
        rows = [row for row in rows_of(results, line.step) if row.values(line.measure)]
        if not rows:
            continue
        shown = [
            Measured(
                f"{row.peer}, {row.durability}", spread(list(row.values(line.measure).values())), is_ours(row.peer)
            )
            for row in rows
        ]
        label = f"{line.unit}{' (less is better)' if line.lower_is_better else ''}"
        (out / chart_name(line)).write_text(ranges(shown, x_label=label))
