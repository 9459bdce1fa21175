"""The pytest plugin: the fixture ``jobs``, and the lookup of its App.

pytest imports this file in every test run if Stowhand is installed. Therefore it imports nothing else until a test uses
the fixture.
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
    from stowhand.testing.stores import ServerSchema

APP_OPTION, SERVER_OPTION = "stowhand_app", "stowhand_postgres"
STORES = ("memory", "sqlite", "postgres")
MARKER_HELP = (
    "stowhand(store='memory', now=None): store of the fixture jobs in this test: memory, sqlite or postgres, or a list,"
    " to run the test on each; and the start time of the test, such as '2030-01-01T12:00'"
)
APP_OPTION_HINT = f'write {APP_OPTION} = "module:name" there, as in "shop.jobs:app"'


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the ini options."""
    parser.addini(APP_OPTION, 'the App of the fixture "jobs": module:name, such as shop.jobs:app')
    parser.addini(
        SERVER_OPTION, "URL of the PostgreSQL server of tests marked stowhand(store='postgres'), not DATABASE_URL"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, which pytest must know before it collects tests."""
    config.addinivalue_line("markers", MARKER_HELP)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that is marked with several stores on each of them."""
    if "jobs" in metafunc.fixturenames and len(stores := _stores(metafunc.definition)) > 1:
        metafunc.parametrize("jobs", stores, indirect=True)


@pytest.fixture
def stowhand_app(pytestconfig: pytest.Config) -> App:
    """The App of the fixture ``jobs``, as the ini file names it.

    A fixture of this name in a conftest.py replaces it for that folder.
    """
    return find_app(pytestconfig)


@pytest.fixture(scope="session")
def stowhand_server(pytestconfig: pytest.Config) -> Iterator[ServerSchema]:
    """The schema of this test process on a PostgreSQL server, dropped at the end."""
    from stowhand.testing.stores import ServerSchema

    server = ServerSchema(find_server(pytestconfig))
    yield server
    server.drop()


@pytest.fixture
def jobs(request: pytest.FixtureRequest, stowhand_app: object, tmp_path_factory: Any) -> Iterator[Jobs]:
    """The jobs of the App in one test: ``drain`` and ``advance`` run them, ``assert_enqueued`` checks them.

    Each test starts without jobs. They are in memory unless the test is marked
    ``@pytest.mark.stowhand(store="sqlite")`` or ``"postgres"``.
    """
    from stowhand.errors import StowhandError
    from stowhand.testing.clock import ManualClock
    from stowhand.testing.jobs import jobs_of

    store, now = read_marks(request)
    app = checked_app(stowhand_app)
    server = request.getfixturevalue("stowhand_server") if store == "postgres" else None
    folder = tmp_path_factory.mktemp("stowhand") if store == "sqlite" else Path()
    with ExitStack() as stack:
        try:
            jobs_fixture = stack.enter_context(jobs_of(app, store, ManualClock(now), server, folder))
        except StowhandError as error:  # the server does not answer, or its user may not create a schema
            fail_test(f"{request.node.nodeid}: stowhand(store={store!r}): {error}")
        yield jobs_fixture


def fail_test(message: str) -> NoReturn:
    """Fail the test with this message, without frames of this package."""
    raise pytest.fail.Exception(message, pytrace=False) from None


def read_marks(request: pytest.FixtureRequest) -> tuple[str, datetime | None]:
    """Return the store of the test and its start time."""
    node = request.node
    store = getattr(request, "param", None) or (_stores(node) or ["memory"])[0]
    for mark in node.iter_markers("stowhand"):
        if mark.args or set(mark.kwargs) - {"store", "now"}:
            fail_test(f"{node.nodeid}: {_format_mark(mark)}: write {MARKER_HELP.partition(':')[0]}")
    if store not in STORES:
        fail_test(f"{node.nodeid}: stowhand(store={store!r}): unknown store; use {', '.join(STORES)}")
    times = [mark.kwargs["now"] for mark in node.iter_markers("stowhand") if "now" in mark.kwargs]
    return store, _read_time(node, times[0]) if times else None


def _stores(node: pytest.Item | Any) -> list[Any]:
    """Return the stores that the nearest mark of the test, its class or its module names. They may be misspelled."""
    for mark in node.iter_markers("stowhand"):
        if stores := mark.kwargs.get("store"):
            return list(stores) if isinstance(stores, (list, tuple)) else [stores]
    return []


def _read_time(node: pytest.Item, value: object) -> datetime:
    try:
        time = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        fail_test(f"{node.nodeid}: stowhand(now={value!r}): use a datetime, or a text such as '2030-01-01T12:00'")
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _format_mark(mark: pytest.Mark) -> str:
    arguments = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"stowhand({', '.join(arguments)})"


def find_server(config: pytest.Config) -> str:
    """Return the URL of the PostgreSQL server for tests."""
    url = str(config.getini(SERVER_OPTION)) or os.environ.get("DATABASE_URL", "")
    if not url.startswith(("postgres://", "postgresql://")):
        fail_test(
            f"{_file(config)}: stowhand(store='postgres') needs a server; set {SERVER_OPTION} = \"postgresql://…\""
            f" there, or set DATABASE_URL{', which is not a PostgreSQL URL' if url else ''}"
        )
    return url


def find_app(config: pytest.Config) -> App:
    """Return the App that the ini file names. Errors name the file and the option."""
    from stowhand.app.app import App
    from stowhand.errors import ConfigurationError
    from stowhand.tasks.loader import load_object

    file, target = _file(config), str(config.getini(APP_OPTION))
    if not target:
        fail_test(
            f"{file}: the fixture 'jobs' needs an App, but {APP_OPTION} is not set; {APP_OPTION_HINT}, or define a"
            f" fixture {APP_OPTION!r} that returns the App"
        )
    if (root_folder := str(config.rootpath)) not in sys.path:
        sys.path.append(root_folder)
    try:
        return load_object(target, App)
    except ConfigurationError as error:
        fail_test(f"{file}: {APP_OPTION}: {error}{'' if error.__cause__ else f'; {APP_OPTION_HINT}'}")


def _file(config: pytest.Config) -> str:
    return str(config.inipath or f"pytest.ini or pyproject.toml (of {config.rootpath})")


def checked_app(app: object) -> App:
    """Return the value of the fixture ``stowhand_app``. Fails the test unless it is an App."""
    from stowhand.app.app import App
    from stowhand.errors import a_type

    if not isinstance(app, App):
        fail_test(f"the fixture {APP_OPTION!r} returned {a_type(app)}; return an App")
    return app
