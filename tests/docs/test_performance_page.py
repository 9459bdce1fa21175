"""The page about speed says what was measured: its tables are made of the committed results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.performance import PAGE, TABLES, USERS_PAGE, asked, cell, figure, goals, written
from benchmarks.results import Machine, Measured, Results, read, write

HERE = Machine("a processor", 2, "4 GiB", "an OS", {"Python": "3.14"})


def part(**figures: dict[str, list[float]]) -> Measured:
    measures = {name.replace("_", " "): found for name, found in figures.items()}
    return Measured("benchmarks/peers.py", "abc", "2026-01-01", 60, "0.1 before, 1.0 after", HERE, measures)


def results(ours: float, peer: float) -> Results:
    drain = {"stowhand": [ours] * 5, "graphile-worker, batched": [peer] * 5}
    return {"queues": part(**{"drain, 1 process, jobs/s": drain})}


def test_the_tables_of_the_page_match_the_results() -> None:
    for page in (PAGE.read_text(), USERS_PAGE.read_text()):
        assert written(page, read()) == page, "scripts/performance-page --tables writes them anew"


def test_every_table_is_on_one_page() -> None:
    assert sorted((*asked(PAGE.read_text()), *asked(USERS_PAGE.read_text()))) == sorted(TABLES)


def test_a_library_that_was_not_measured_has_no_row() -> None:
    lines = list(TABLES["compared"](results(30_123.0, 10_000.0)))
    assert lines[:4] == [
        "| store | library | jobs/s, one worker process | enqueue to start, ms |",
        "| --- | --- | --: | --: |",
        "| PostgreSQL | stowhand | 30,100 | - |",
        "| PostgreSQL | graphile-worker, batched | 10,000 | - |",
    ]
    assert not [line for line in lines if "pgqueuer" in line or "SQLite" in line]


@pytest.mark.parametrize(("ours", "verdict"), [(2500.0, "| met |"), (2499.0, "| **not met** |")])
def test_a_goal_is_met_or_not(ours: float, verdict: str) -> None:
    (line,) = [
        line
        for line in goals(results(ours, 1000.0))
        if "graphile" in line and line.startswith("| PostgreSQL: drain, 1 ")
    ]
    assert line.endswith(verdict)


def test_a_goal_without_figures_says_so() -> None:
    assert all(line.endswith("| not measured |") for line in list(goals({}))[2:])


def test_a_table_is_a_row_for_each_contender() -> None:
    lines = list(TABLES["drain"](results(30_123.0, 10_000.0)))
    assert lines[:4] == [
        "| contender | 1 process, jobs/s |",
        "| --- | --: |",
        "| stowhand | 30,100 |",
        "| graphile-worker, batched | 10,000 |",
    ]
    assert "medians of 5 runs, commit abc, 2026-01-01, 60 s; load 0.1 before, 1.0 after." in lines[-1]


def test_only_text_between_the_comments_is_replaced() -> None:
    page = "# Page\n\n<!-- results: idle -->\nold\n<!-- end of results -->\n\nText.\n"
    once = written(page, {})
    assert once == page.replace("old", "*Not measured yet.*")
    assert written(once, {}) == once
    with pytest.raises(KeyError, match="unheard-of"):
        written(page.replace("idle", "unheard-of"), {})


def test_figures_have_three_digits_and_the_spread_of_runs() -> None:
    assert [figure(value) for value in (34_512.0, 999.6, 14.25, 0.00512, 0.0, 2.0)] == [
        "34,500", "1,000", "14.2", "0.00512", "0", "2",
    ]  # fmt: skip
    assert cell([90.0, 100.0, 120.0]) == "100 ±15 %"
    assert cell([0.0, 0.0]) == "0"
    assert cell(None) == "-"


def test_a_new_measurement_replaces_only_its_part(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    assert read(file) == {}
    write({"idle": part(memory={"stowhand": [1.23456, 2.0]}), "flows": part()}, file)
    assert read(file)["idle"].figures == {"memory": {"stowhand": [1.235, 2.0]}}
    assert "[1.235, 2.0]" in file.read_text()
    write(read(file) | {"idle": part()}, file)
    assert (read(file)["idle"].figures, list(read(file))) == ({}, ["flows", "idle"])
