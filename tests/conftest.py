"""What every test may ask for: a real PostgreSQL or Redis, a fresh database, and a way to run a coroutine.

A folder that wants its databases prepared (migrated, filled) overrides `postgres_setup`; see there.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, Protocol, TypeVar

import pytest
from hypothesis import settings

from tests.support.binaries import older_than
from tests.support.databases import Databases, Setup
from tests.support.memory import use_memory
from tests.support.servers import PostgresServer, main_server
from tests.support.sources import ROOT
from tests.support.valkey import LiveRedis, main_redis

pytest_plugins = ["tests.support.selection", "tests.support.other_python", "pytester"]

T = TypeVar("T")

# A shell has what it starts in the background ignore SIGINT, and so would all programs that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

use_memory()

# How long one example takes is the machine's business. The examples are the same in every run, so that what a run finds
# is about the change it looks at; --hypothesis-profile wander looks for new ones.
settings.register_profile("stowhand", deadline=None, derandomize=True)
settings.register_profile("wander", deadline=None)
settings.load_profile("stowhand")


class Run(Protocol):
    """Runs one coroutine to its end in a new event loop, at most `timeout` seconds.

    A function is called in the loop, and returns the coroutine: methods of an App refuse to be called outside.
    """

    def __call__(
        self, coroutine: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], timeout: float = 30
    ) -> T: ...


@pytest.fixture
def run() -> Run:
    """`result = run(coroutine)`: the only way in which a test enters an event loop."""
    return _run


def _run(coroutine: Coroutine[Any, Any, T] | Callable[[], Coroutine[Any, Any, T]], timeout: float = 30) -> T:
    async def within_the_deadline() -> T:
        scope = asyncio.timeout(timeout)
        try:
            async with scope:
                return await (coroutine() if callable(coroutine) else coroutine)
        except TimeoutError as error:
            # A TimeoutError of the code under test is its own business.
            if scope.expired():
                raise AssertionError(f"the test's coroutine did not end in {timeout} s") from error
            raise

    return asyncio.run(within_the_deadline())


@pytest.fixture(autouse=True)
def modules_of_programs_end(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A program of a test's own, or of `examples`, that was imported here: the next test has a `shop` too."""
    folders = (str(tmp_path_factory.getbasetemp()), str(ROOT / "examples"))
    before, path = set(sys.modules), set(sys.path)
    yield
    sys.path[:] = [folder for folder in sys.path if folder in path or not folder.startswith(folders)]
    for name in sys.modules.keys() - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(folders):
            del sys.modules[name]


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Databases]:
    """The main server, one per process of the test run: PostgreSQL 18, or the one at DATABASE_URL."""
    server = main_server()
    yield server
    if isinstance(server, PostgresServer):
        server.close()  # with all that is in it
    else:
        server.drop_templates()


@pytest.fixture(scope="session")
def older_postgres_server(postgres_server: Databases) -> Iterator[PostgresServer]:
    """The oldest server of this machine that is older than the main one; without one the test is skipped."""
    binaries = older_than(postgres_server.version)
    if binaries is None:
        pytest.skip(f"no PostgreSQL older than {postgres_server.version} on this machine")
    with PostgresServer(binaries) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_setup() -> Setup | None:
    """THE SEAM. Override it in a folder's conftest.py to return a function that takes the URL of an empty
    database and prepares it. It runs once per server; each test's database is a copy.

        @pytest.fixture(scope="session")
        def postgres_setup() -> Setup:
            return install_the_schema
    """
    return None


@pytest.fixture
def postgres_url(postgres_server: Databases, postgres_setup: Setup | None) -> Iterator[str]:
    """The URL of a database of the test's own, prepared by `postgres_setup`."""
    with postgres_server.lend(postgres_setup) as url:
        yield url


@pytest.fixture
def older_postgres_url(older_postgres_server: PostgresServer, postgres_setup: Setup | None) -> Iterator[str]:
    """The same on the older server."""
    with older_postgres_server.lend(postgres_setup) as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[LiveRedis]:
    """The Redis or Valkey of the suite, one per process of the test run, or the one at REDIS_URL."""
    server = main_redis()
    yield server
    server.close()


@pytest.fixture
def redis_url(redis_server: LiveRedis) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    redis_server.flush()
    yield redis_server.url
    redis_server.flush()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collecting makes a million objects that live to the end: garbage is not looked for among them, then or later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """A step of scripts/test that failed before pytest began fails the run."""
    if exitstatus == pytest.ExitCode.OK and os.environ.get("FAILED_STEPS"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What did not run, counted by reason; and the steps of scripts/test that failed before pytest began."""
    skipped = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    for reason, count in sorted(skipped.items()):
        terminalreporter.write_line(f"SKIPPED {count}: {reason}", yellow=True)
    failed_steps = os.environ.get("FAILED_STEPS")
    if failed_steps:
        terminalreporter.write_line(f"FAILED before pytest: {failed_steps} (see above)", red=True)


def _reason(report: pytest.TestReport) -> str:
    place_and_reason = report.longrepr
    text = place_and_reason[2] if isinstance(place_and_reason, tuple) else str(place_and_reason)
    return text.removeprefix("Skipped: ")
