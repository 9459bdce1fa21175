"""A benchmark can be found, and one that the page shows is there."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.parts import PARTS
from tests.support.sources import ROOT

FOLDER = ROOT / "benchmarks"


def test_every_module_of_the_benchmarks_is_described() -> None:
    described = (FOLDER / "README.md").read_text()
    assert [file.name for file in sorted(FOLDER.glob("*.py")) if file.name not in described] == []


@pytest.mark.parametrize("file", [pytest.param(file, id=file.stem) for file in sorted(FOLDER.glob("*.py"))])
def test_what_a_benchmark_takes_from_the_package_is_there(file: Path) -> None:
    """A benchmark runs seldom: a name that was moved would be missed when somebody measures."""
    taken = [one for one in ast.walk(ast.parse(file.read_text())) if isinstance(one, ast.ImportFrom) and one.module]
    for one in taken:
        assert one.module is not None
        if one.module.partition(".")[0] in ("stowhand", "tests"):
            assert not [name.name for name in one.names if not hasattr(import_module(one.module), name.name)], (
                one.module
            )


def test_every_part_of_the_page_has_a_benchmark_that_writes_it() -> None:
    scripts = {part.command.split()[0] for part in PARTS.values()}
    assert [name for name in sorted(scripts) if '"--json"' not in (FOLDER / name).read_text()] == []


def test_a_part_is_run_as_often_as_requested() -> None:
    assert PARTS["costs"].line(3, quick=False) == "peers.py --only costs,start --peers graphile,pgqueuer --runs 3"
    assert PARTS["idle"].line(1, quick=True).endswith("--window 60 --window 5 --runs 1")
    assert PARTS["timeline"].line(5, quick=False) == "timeline.py --jobs 300"
