"""House rule: what a fast run leaves out is what was measured as slow, and a run may be one process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import slow_tests
from tests.support.other_python import as_here
from tests.support.selection import UNKNOWN
from tests.support.sharing import scope_of
from tests.support.slow_tests import ENOUGH, FAR, LONG, SLOW, WHOLE, file_of, measured, read, unknown, unlisted, write
from tests.support.sources import ROOT


def test_every_test_in_the_list_of_slow_tests_exists(request: pytest.FixtureRequest) -> None:
    gone = [test for test in read() if not defined(test)]
    assert (gone, request.config.stash[UNKNOWN]) == ([], []), "take these lines out of tests/slow.txt"


def test_listed_tests_took_longer_than_a_fast_test_may() -> None:
    assert all(seconds >= SLOW for seconds in read().values())


def test_the_list_is_made_from_the_report_of_a_run(tmp_path: Path) -> None:
    report, listed = tmp_path / "report.xml", tmp_path / "slow.txt"
    case = '<testcase classname="tests.a.test_b" name="test_{}" time="{}"/>'
    report.write_text(f"<suite>{case.format('long[a b]', 2.34)}{case.format('short', SLOW - 0.01)}</suite>")
    write(measured(report), listed)
    assert read(listed) == {"tests/a/test_b.py::test_long[a b]": 2.3}


def test_a_listed_test_that_is_not_among_those_of_its_file_is_unknown() -> None:
    collected = {"tests/a.py::test_one", "tests/b.py::test_two"}
    assert unknown(["tests/a.py::test_one", "tests/a.py::test_two", "tests/c.py::test_one"], collected) == [
        "tests/a.py::test_two"
    ]


def test_long_tests_are_distributed_alone_and_others_by_file_and_group() -> None:
    took = {"tests/a.py::test_long[x@y]": LONG, "tests/a.py::test_slow": LONG - 0.1}
    assert scope_of("tests/a.py::test_long[x@y]", "tests/a.py::test_long[x@y]", took) == "tests/a.py::test_long[x@y]"
    assert scope_of("tests/a.py::test_slow", "tests/a.py::test_slow", took) == "tests/a.py"
    assert scope_of("tests/a.py::test_quick", "tests/a.py::test_quick", took) == "tests/a.py"
    assert scope_of("tests/a.py::test_slow@roles", "roles", took) == "roles"


@pytest.mark.parametrize("machine", [0.5, 1.0, 4.0])
def test_the_limit_of_an_unlisted_test_grows_with_the_slowness_of_the_machine(machine: float) -> None:
    listed = {f"tests/a.py::test_{number}": 3.0 for number in range(ENOUGH)}
    limit = FAR * max(1.0, machine)
    took = dict.fromkeys(listed, 3.0 * machine) | {"below": limit - 0.1, "above": limit + 0.1}
    assert unlisted(listed, took) == ["above"]


def test_few_tests_do_not_measure_a_machine() -> None:
    assert unlisted({"a": 3.0}, {"a": 3.0, "above": 1000.0}) == []


def test_a_run_may_use_one_process_without_the_plugin() -> None:
    # Of this file some tests belong into one process of a distributed run.
    assert re.search("^[0-9]+ tests collected", collected("tests/cli/test_roles.py"), re.MULTILINE)


def test_a_group_runs_in_one_process_of_a_distributed_run(pytester: pytest.Pytester) -> None:
    marked = "import pytest\n@pytest.mark.xdist_group('g')\ndef test_marked(): pass\n"
    pytester.makepyfile(test_a=marked, test_b=marked, test_c=marked, test_d=marked)
    pytester.makeini(f"[pytest]\npythonpath = {ROOT}")
    pytester.makeconftest("pytest_plugins = ['tests.support.selection']")
    words = ("-n", "2", "--dist", "loadgroup", "-v", "-p", "no:cacheprovider")
    ran = pytester.runpytest_subprocess(*words)
    ran.assert_outcomes(passed=4)
    processes = {line.split()[0] for line in ran.outlines if "PASSED" in line}
    assert len(processes) == 1, ran.outlines


def test_a_test_that_was_skipped_in_the_other_environment_is_reported_here() -> None:
    report = pytest.TestReport("a.py::b", ("a.py", 0, "b"), {}, "skipped", ("a.py", 1, "Skipped: why"), "call")
    there = json.loads(json.dumps(report._to_json()))
    assert pytest.TestReport._from_json(as_here(there, "[6.0]")).longrepr == report.longrepr


def test_a_fast_run_leaves_out_the_listed_tests() -> None:
    file = file_of(next(iter(read())))
    number = sum(file_of(test) == file for test in read())
    assert f"({number} deselected)" in collected("--fast", file)
    assert "deselected" not in collected("--all", file)


def test_rare_pairs_run_only_with_all() -> None:
    file = "tests/stores/postgres/test_odd_servers.py"
    assert "deselected" in collected(file)
    assert "deselected" not in collected("--all", file)


def collected(*words: str) -> str:
    """What one process says that it would run."""
    program = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    ended = subprocess.run([*program, *words], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False)
    assert ended.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED), ended.stdout + ended.stderr
    return ended.stdout


def defined(test: str) -> bool:
    """Whether its file has a function of this name."""
    name = test.partition("::")[2].partition("[")[0]
    path = ROOT / file_of(test)
    return path.exists() and (name in WHOLE or f"def {name}(" in path.read_text())


@pytest.mark.parametrize(
    ("written", "plain"),
    [("t.py::a@g", "t.py::a"), ("t.py::a[x]@g]", "t.py::a[x]"), ("t.py::a[put @x]", "t.py::a[put @x]")],
)
def test_a_slow_test_is_named_without_its_group(written: str, plain: str) -> None:
    assert slow_tests.plain(written) == plain
