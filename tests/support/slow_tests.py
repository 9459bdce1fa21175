"""Which tests are slow, as measured: `scripts/slow-tests` writes tests/slow.txt from the report of a whole run."""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from xml.etree import ElementTree

LIST = Path(__file__).parent.parent / "slow.txt"
SLOW = 0.25
"""Seconds: what takes longer is left out of `scripts/test --fast`, which is to last two minutes and a half. One test in
fifteen is, and takes two thirds of the time."""

LONG = 2.0
"""Seconds: what takes longer is begun first, and shared out by itself."""

FAR = 20.0
"""Seconds that a test takes which is not listed, before a run fails for it: a busy moment stays far below."""

ENOUGH = 20
"""So many listed tests tell how fast this machine is, beside the one that measured."""

WHOLE = ("test_in_the_environment_of_django", "test_with_django_6_0")
"""Each stands for a file of tests/django."""

_HEAD = f"""\
# What took over {SLOW:g} s, in seconds: written by scripts/slow-tests, left out by scripts/test --fast.
"""


def read(path: Path = LIST) -> dict[str, float]:
    """Test -> seconds."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {test: float(seconds) for seconds, test in (line.split(maxsplit=1) for line in lines)}


def measured(report: Path) -> dict[str, float]:
    """The same from a report that pytest has written (`--junitxml`), fixtures included."""
    cases = ElementTree.parse(report).iter("testcase")
    return {
        plain(f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name']}"): float(case.attrib["time"])
        for case in cases
    }


def write(took: Mapping[str, float], path: Path = LIST) -> int:
    """The slow ones of these, by name, so that a change of one is a change of one line. Their number.

    What stands for a file of tests/django is never quick: the first of them waits for the start of their process.
    """
    whole = {test: max(seconds, 2 * SLOW) for test, seconds in took.items() if test.endswith(WHOLE)}
    slow = {test: seconds for test, seconds in took.items() if seconds > SLOW and not _is_elsewhere(test)} | whole
    path.write_text(_HEAD + "".join(f"{slow[test]:5.1f} {test}\n" for test in sorted(slow)))
    return len(slow)


def _is_elsewhere(test: str) -> bool:
    """It ran in the environment of Django, where one test of this one stands for its whole file (other_python.py)."""
    return test.startswith("tests/django/") and not test.endswith(WHOLE)


def plain(nodeid: str) -> str:
    """Without the group that a process of a distributed run appends; pytest's report closes a bracket behind it."""
    return re.sub(r"(?<=\])@\w+\]$|@\w+$", "", nodeid)


def unknown(listed: Iterable[str], collected: Collection[str]) -> list[str]:
    """Listed tests of files that were collected, which are not among the tests there."""
    files = {file_of(test) for test in collected}
    return sorted(test for test in listed if file_of(test) in files and test not in collected)


def file_of(test: str) -> str:
    return test.partition("::")[0]


def unlisted(listed: Mapping[str, float], took: Mapping[str, float]) -> list[str]:
    """Tests that are not listed and took longer than FAR, on a machine of this one's speed.

    None if too few of the listed ones ran to tell the speed.
    """
    ratios = [took[test] / seconds for test, seconds in listed.items() if test in took]
    if len(ratios) < ENOUGH:
        return []
    limit = FAR * max(1.0, statistics.median(ratios))
    return sorted(test for test, seconds in took.items() if seconds > limit and test not in listed)


if __name__ == "__main__":
    print(f"{LIST.name}: {write(measured(Path(sys.argv[1])))} tests")  # noqa: T201 - a program's result
