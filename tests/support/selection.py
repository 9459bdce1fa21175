"""What a run takes: all but the rare ones, `--all`, or the `--fast` ones; in which order; and what is slow unlisted.

A plugin of pytest, of the whole suite (tests/conftest.py).
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests.support import slow_tests

UNKNOWN = pytest.StashKey[list[str]]()
"""Of a session's configuration: tests that tests/slow.txt lists, and that are nowhere."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("selection")
    group.addoption("--all", action="store_true", help="rare pairs, too")
    group.addoption("--fast", action="store_true", help="without what tests/slow.txt lists")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a distributed run reports to the process that shares it out
        config.pluginmanager.register(Unlisted())
    elif config.getoption("loadgroup"):
        config.pluginmanager.register(Groups())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadgroup":
        return None
    from tests.support.sharing import ByFile

    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = slow_tests.read()
    named_alone = any("::" in argument for argument in config.args)
    config.stash[UNKNOWN] = [] if named_alone else slow_tests.unknown(listed, {item.nodeid for item in items})
    for item in items:
        if item.nodeid in listed:
            item.add_marker("slow")
    if hasattr(config, "workerinput"):  # the longest first: at the end no process waits long for the others
        items.sort(key=lambda item: min(-listed.get(item.nodeid, 0.0), -slow_tests.LONG))
    if config.getoption("--all") or named_alone:
        return
    left_out = ("slow", "rare") if config.getoption("--fast") else ("rare",)
    out = {item for item in items if any(item.get_closest_marker(name) for name in left_out)}
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


class Groups:
    """In a process of a distributed run: names each test's group behind its id, where the one that shares out looks.

    xdist does so itself, but in a field that pytest 9.2 no longer reads: groups were torn apart without a word
    (pytest-xdist, issue 1386).
    """

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            mark = item.get_closest_marker("xdist_group")
            if mark is not None and not item.nodeid.endswith(behind := f"@{mark.args[0]}"):
                item._id = type(item._id).parse(item.nodeid + behind)


class Unlisted:
    """Fails a run in which a test took far longer than one that is not listed as slow may."""

    def __init__(self) -> None:
        self._listed = slow_tests.read()
        self._took: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":  # what many share, an installation or a server, is set up beside any of them
            self._took[slow_tests.plain(report.nodeid)] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == pytest.ExitCode.OK and self._far():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test in self._far():
            line = f"FAILED: {test} took {self._took[test]:.0f} s, but tests/slow.txt lacks it (scripts/slow-tests)"
            terminalreporter.write_line(line, red=True)

    def _far(self) -> list[str]:
        return slow_tests.unlisted(self._listed, self._took)
