"""The pytest plugin: the fixture ``jobs``, and how it finds the App. pytest imports this file in every test run where
Stowhand is installed, so it imports nothing more until a test asks for the fixture.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from stowhand.app.app import App
    from stowhand.testing.jobs import Jobs
    from stowhand.testing.places import Server

OPTION, SERVER = "stowhand_app", "stowhand_postgres"
STORES = ("memory", "sqlite", "postgres")
MARKER = (
    "stowhand(store='memory', now=None): where the fixture jobs keeps the jobs of this test: memory, sqlite, postgres"
    " (several in a list: the test is run on each); and the time at which it begins, as '2030-01-01T12:00'"
)
HOW = f'write {OPTION} = "module:name" there, as in "shop.jobs:app"'


def pytest_addoption(parser: pytest.Parser) -> None:
    """What stands in the ini file."""
    parser.addini(OPTION, 'the App of the fixture "jobs": module:name, as in shop.jobs:app')
    parser.addini(SERVER, "the PostgreSQL of tests that are marked stowhand(store='postgres'), instead of DATABASE_URL")


def pytest_configure(config: pytest.Config) -> None:
    """Markers must be known before tests are collected."""
    config.addinivalue_line("markers", MARKER)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that is marked with several stores is run on each."""
    if "jobs" in metafunc.fixturenames and len(stores := _stores(metafunc.definition)) > 1:
        metafunc.parametrize("jobs", stores, indirect=True)


@pytest.fixture
def stowhand_app(pytestconfig: pytest.Config) -> App:
    """The App whose jobs a test asks for: what the ini file names. A fixture of this name in a conftest.py replaces it
    for its folder."""
    return find_app(pytestconfig)


@pytest.fixture(scope="session")
def stowhand_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The schema of this process on a real server, dropped at the end."""
    from stowhand.testing.places import Server

    server = Server(find_server(pytestconfig))
    yield server
    server.drop()


@pytest.fixture
def jobs(request: pytest.FixtureRequest, stowhand_app: object, tmp_path_factory: Any) -> Iterator[Jobs]:
    """The App's jobs in this test: none at first, kept in memory unless it is marked otherwise, gone with it."""
    from stowhand.errors import StowhandError
    from stowhand.testing.clock import ManualClock
    from stowhand.testing.jobs import jobs_of

    store, now = read_marks(request)
    app = checked_app(stowhand_app)
    server = request.getfixturevalue("stowhand_server") if store == "postgres" else None
    folder = tmp_path_factory.mktemp("stowhand") if store == "sqlite" else Path()
    with ExitStack() as stack:
        try:
            made = stack.enter_context(jobs_of(app, store, ManualClock(now), server, folder))
        except StowhandError as error:  # the server does not answer, or its user may not make a schema
            refuse(f"{request.node.nodeid}: stowhand(store={store!r}): {error}")
        yield made


def refuse(why: str) -> NoReturn:
    """Fail the test with this sentence, and none of our frames."""
    raise pytest.fail.Exception(why, pytrace=False) from None


def read_marks(request: pytest.FixtureRequest) -> tuple[str, datetime | None]:
    """Where this test keeps its jobs, and when it begins."""
    node = request.node
    store = getattr(request, "param", None) or (_stores(node) or ["memory"])[0]
    for mark in node.iter_markers("stowhand"):
        if mark.args or set(mark.kwargs) - {"store", "now"}:
            refuse(f"{node.nodeid}: {_shown(mark)}: write {MARKER.partition(':')[0]}")
    if store not in STORES:
        refuse(f"{node.nodeid}: stowhand(store={store!r}): it is one of {', '.join(STORES)}")
    moments = [mark.kwargs["now"] for mark in node.iter_markers("stowhand") if "now" in mark.kwargs]
    return store, _moment(node, moments[0]) if moments else None


def _stores(node: pytest.Item | Any) -> list[Any]:
    """Those that the test's marks name, and those of its class and module where it has none; they may be mistyped."""
    for mark in node.iter_markers("stowhand"):
        if named := mark.kwargs.get("store"):
            return list(named) if isinstance(named, (list, tuple)) else [named]
    return []


def _moment(node: pytest.Item, given: object) -> datetime:
    try:
        moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    except ValueError:
        refuse(f"{node.nodeid}: stowhand(now={given!r}): write a datetime, or a moment as in '2030-01-01T12:00'")
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _shown(mark: pytest.Mark) -> str:
    given = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"stowhand({', '.join(given)})"


def find_server(config: pytest.Config) -> str:
    """The URL of a PostgreSQL."""
    url = str(config.getini(SERVER)) or os.environ.get("DATABASE_URL", "")
    if not url.startswith(("postgres://", "postgresql://")):
        refuse(
            f"{_file(config)}: stowhand(store='postgres') needs a server: write {SERVER} = \"postgresql://…\" there, or"
            f" set DATABASE_URL{'' if not url else ', which names none'}"
        )
    return url


def find_app(config: pytest.Config) -> App:
    """The App that the ini file names. What is wrong is said with the file and the option."""
    from stowhand.app.app import App
    from stowhand.errors import ConfigurationError
    from stowhand.tasks.loader import load_object

    file, named = _file(config), str(config.getini(OPTION))
    if not named:
        refuse(
            f"{file}: the fixture 'jobs' needs an App, and no {OPTION} is set; {HOW}, or define a fixture"
            f" {OPTION!r} that gives the App"
        )
    if (here := str(config.rootpath)) not in sys.path:
        sys.path.append(here)
    try:
        return load_object(named, App)
    except ConfigurationError as error:
        refuse(f"{file}: {OPTION}: {error}{'' if error.__cause__ else f'; {HOW}'}")


def _file(config: pytest.Config) -> str:
    return str(config.inipath or f"pytest.ini or pyproject.toml (of {config.rootpath})")


def checked_app(app: object) -> App:
    """What the fixture ``stowhand_app`` gave."""
    from stowhand.app.app import App
    from stowhand.errors import a_type

    if not isinstance(app, App):
        refuse(f"the fixture {OPTION!r} gave {a_type(app)}; it returns an App")
    return app
