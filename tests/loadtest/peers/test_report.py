"""The report comes from the files of a run: medians, ratios round by round, and failures without numbers."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from loadtest.peers.report import LINES, PROGRAMS, markdown, ratio, rows_of, write_report

BATCHED = next(line for line in LINES if line.step == "batched")
PUSH = next(line for line in LINES if line.step == "push")


def about_peer(durability: str = "synced", *, is_limit: bool = False) -> dict[str, object]:
    levels = {"always": {"durability": durability, "about": "as told"}}
    return {"version": "1", "about": "so it is", "levels": levels, "is_limit": is_limit}


ABOUT = {
    "windows": [
        {
            "started_at": "2026-01-01T00:00:00+00:00",
            "commit": "c0ffee",
            "load_average": 0.1,
            "slowness": 1.4,
            "idle": {"synced": {"kafka, always": 0.021, "nsqd, always": 0.0}},
        }
    ],
    "rounds": 3,
    "machine": {
        "cpu": "c",
        "cores": 2,
        "memory_gib": 1,
        "kernel": "k",
        "file_system": "ext4",
        "slowness": 1.2,
        "pages_out": True,
    },
    "versions": {"python": "3.11"},
    "steps": {"batched": {"duration_s": 1}},
    "peers": {"mq": about_peer(), "kafka": about_peer(), "bare": about_peer(is_limit=True)},
    "missing": {"bridge": "no release here"},
}


def result(
    number: int, peer: str, step: str, client: str = PROGRAMS, level: str = "always", **values: object
) -> dict[str, object]:
    told = {"round": number, "peer": peer, "level": level, "client": client, "durability": "synced", "step": step}
    return {**told, **values}


def rounds(peer: str, values: list[float], step: str = "batched", **more: str) -> list[dict[str, object]]:
    measure = "p99_ms" if step.startswith("push") else "records_per_s"
    return [result(number, peer, step, **more, **{measure: value}) for number, value in enumerate(values)]


def lines_of(page: str, start: str) -> list[str]:
    return [line for line in page.splitlines() if line.startswith(start)]


def test_a_ratio_is_taken_round_by_round_with_the_row_that_is_named() -> None:
    results = [
        *rounds("mq", [900, 900, 900], client="aiohttp, JSON"),  # better, and not the named one
        *rounds("mq", [200, 400, 600]),
        *rounds("kafka", [100, 200, 300]),
    ]
    rows = rows_of(results, "batched")
    found = {row.key: ratio(BATCHED, row, rows) for row in rows}
    kafka = found[f"kafka, always, {PROGRAMS}"]
    assert kafka is not None
    assert (kafka.value, kafka.round_count) == ((2, 2, 2), 3)
    assert [name for name, one in found.items() if one] == [f"kafka, always, {PROGRAMS}"]


def test_a_round_in_which_one_of_the_two_failed_has_no_ratio() -> None:
    results = [*rounds("mq", [200, 400]), result(2, "mq", "batched", failed="it died"), *rounds("kafka", [100, 100, 1])]
    rows = rows_of(results, "batched")
    found = ratio(BATCHED, rows[1], rows)
    assert found is not None
    assert (found.round_count, found.value.high) == (2, 4)


def test_less_is_better_for_times() -> None:
    rows = rows_of([*rounds("mq", [10], "push"), *rounds("nats", [5], "push")], "push")
    found = ratio(PUSH, rows[1], rows)
    assert found is not None
    assert found.value.median == 0.5


def test_other_durabilities_are_not_compared() -> None:
    rows = rows_of([{**rounds("mq", [10])[0], "durability": "written"}, *rounds("kafka", [5])], "batched")
    assert ratio(BATCHED, next(row for row in rows if row.peer == "kafka"), rows) is None


def test_a_failed_row_has_no_number_and_a_reason() -> None:
    results = [*rounds("mq", [123]), *(result(n, "kafka", "batched", failed="it | died") for n in range(2))]
    page = markdown(ABOUT, results)
    (line,) = lines_of(page, "| kafka")
    assert "failed 2 of 2: it / died" in line
    assert not any(character in line.replace("2 of 2", "") for character in "13456789")
    assert "**bridge**: not measured: no release here" in page


@pytest.mark.parametrize(
    ("ours", "theirs", "shown", "place"),
    [
        ([50, 60], [100, 100], "0.55x (0.50 - 0.60)", "behind"),
        ([50, 150], [100, 100], "1.00x (0.50 - 1.50)", "level"),
        ([100], [200], "0.50x (n = 1)", "behind"),
        ([200, 210], [100, 100], "2.05x (2.00 - 2.10)", "nowhere"),
    ],
)
def test_where_we_are_behind_is_said_and_a_range_that_holds_1_is_no_claim(
    ours: list[float], theirs: list[float], shown: str, place: str
) -> None:
    page = markdown(ABOUT, [*rounds("mq", ours), *rounds("kafka", theirs)])
    behind, level = page.partition("## Where we are behind")[2].partition("Level, so neither")[::2]
    entry = f"- Batches of 1,000, synced: kafka, always, {PROGRAMS}: {shown}"
    assert (entry in behind) == (place == "behind")
    assert (entry in level.partition("## Conditions")[0]) == (place == "level")
    (row,) = lines_of(page, "| kafka")
    assert (f"| level: {shown} |" if place == "level" else f"| {shown} |") in row


def test_what_was_measured_once_says_so() -> None:
    (line,) = lines_of(markdown(ABOUT, rounds("mq", [50])), "| **mq**")
    assert "| 50 (n = 1) |" in line


def test_how_slow_the_machine_was_is_said_of_each_window() -> None:
    page = markdown(ABOUT, rounds("mq", [50]))
    assert "- c, 2 cores, 1.2 times as slow as our reference (loadtest/slowness.py), 1 GiB, memory that is not" in page
    assert "commit c0ffee, load average 0.1, 1.4 times as slow as our reference before." in page


def test_a_limit_is_shown_and_never_compared() -> None:
    page = markdown(ABOUT, [*rounds("mq", [50]), *rounds("bare", [100])])
    (line,) = lines_of(page, "| bare")
    assert "| no queue |" in line
    assert "bare, always" not in page.partition("## Where we are behind")[2].partition("## Conditions")[0]


def test_costs_are_those_of_the_window_and_the_limit_is_named_with_its_rounds() -> None:
    used = {"records": 1_000_000, "server_cpu_s": 2.0, "kernel_cpu_s": 0.5, "client_cpu_s": 4.0, "window_s": 5.0}
    results = [
        result(n, "mq", "batched", records_per_s=7, server_peak_mb=100.0 + n, limit=limit, others_cpu_s=0.5, **used)
        for n, limit in enumerate(["client", "disk", "client"])
    ]
    page = markdown(ABOUT, results)
    (line,) = lines_of(page, "| **mq**")
    assert line.endswith("| 2 | 0.5 | 0.8 | client (2), disk (1) | 102 |")
    assert "10 % of one core at the median" in page
    assert "Idle servers, synced: 2.1 % of one core in all (kafka, always 2.1 %)" in page


def test_what_the_window_is_not_about_has_no_costs() -> None:
    used = {
        "records": 10,
        "server_cpu_s": 2.0,
        "kernel_cpu_s": 0.5,
        "client_cpu_s": 4.0,
        "window_s": 5.0,
        "others_cpu_s": 0,
    }
    told = result(0, "mq", "delayed", "aiohttp, JSON", p99_ms=7, accepted_per_s=9, limit="timetable", **used)
    lateness, accepted = lines_of(markdown(ABOUT, [told]), "| **mq**")
    assert lateness.endswith("| 7 (n = 1) |  | 200,000 | 50,000 | 0.8 | timetable |  |")
    assert accepted.endswith("| 9 (n = 1) |  |  |  |  |  |  |")


def test_a_level_is_named_where_a_peer_has_several_of_one_durability() -> None:
    results = [*rounds("mq", [1]), *rounds("nsqd", [1], level="default"), *rounds("nsqd", [1], level="every")]
    page = markdown(ABOUT, results)
    assert lines_of(page, "| nsqd, default |")
    assert lines_of(page, "| nsqd, every |")


def test_the_two_kinds_of_works_are_two_chapters() -> None:
    page = markdown(ABOUT, [*rounds("mq", [1]), *rounds("mq", [1], step="replay", client="prebuilt bytes")])
    alone, client = page.partition("## The server alone")[2].partition("## With its client")[::2]
    assert "### A prebuilt batch again and again" in alone
    assert "### Batches of 1,000" in client
    assert "### Batches of 1,000" not in alone


def test_the_report_is_made_from_the_files_of_a_run(tmp_path: Path) -> None:
    runs, out = tmp_path / "runs", tmp_path / "out"
    runs.mkdir()
    out.mkdir()
    (out / "peers-consume-records-per-s.svg").write_text("of a work that is gone")
    (out / "peers-why.md").write_text("Because of C.\n")
    (runs / "about.json").write_bytes(orjson.dumps(ABOUT))
    (runs / "synced-0-batched-mq.json").write_bytes(orjson.dumps(rounds("mq", [77])[0]))
    write_report(runs, out)
    page = (out / "peers.md").read_text()
    assert "77" in page
    assert "Because of C." in page
    assert orjson.loads((out / "peers.json").read_bytes())["results"][0]["records_per_s"] == 77
    assert "mq, aiohttp, record batches, synced" in (out / "peers-batched-records-per-s.svg").read_text()
    assert not (out / "peers-consume-records-per-s.svg").exists()
