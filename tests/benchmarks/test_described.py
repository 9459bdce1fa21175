"""A benchmark can be found, and one that the page shows is there."""

from __future__ import annotations

from benchmarks.parts import PARTS
from tests.support.sources import ROOT

FOLDER = ROOT / "benchmarks"


def test_every_module_of_the_benchmarks_is_described() -> None:
    described = (FOLDER / "README.md").read_text()
    assert [file.name for file in sorted(FOLDER.glob("*.py")) if file.name not in described] == []


def test_a_part_of_the_page_is_a_benchmark_that_writes_its_figures() -> None:
    scripts = {part.command.split()[0] for part in PARTS.values()}
    assert [name for name in sorted(scripts) if '"--json"' not in (FOLDER / name).read_text()] == []


def test_a_part_is_run_as_often_as_is_asked_for() -> None:
    assert PARTS["costs"].line(3, quick=False) == "peers.py --only costs,start --peers graphile,pgqueuer --runs 3"
    assert PARTS["idle"].line(1, quick=True).endswith("--window 60 --window 5 --runs 1")
    assert PARTS["timeline"].line(5, quick=False) == "timeline.py --jobs 300"
