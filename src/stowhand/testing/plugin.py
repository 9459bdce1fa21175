"""The pytest plugin: the fixture ``jobs``, and how it finds the App. pytest imports this file in every test run where
Stowhand is installed, so it imports nothing more until a test asks for the fixture.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from stowhand.app.app import App
    from stowhand.testing.jobs import Jobs

OPTION = "stowhand_app"
HOW = f'write {OPTION} = "module:name" there, as in "shop.jobs:app"'


def pytest_addoption(parser: pytest.Parser) -> None:
    """What stands in the ini file."""
    parser.addini(OPTION, 'the App of the fixture "jobs": module:name, as in shop.jobs:app')


@pytest.fixture
def stowhand_app(pytestconfig: pytest.Config) -> App:
    """The App whose jobs a test asks for: what the ini file names. A fixture of this name in a conftest.py replaces it
    for its folder."""
    return find_app(pytestconfig)


@pytest.fixture
def jobs(stowhand_app: object) -> Iterator[Jobs]:
    """The App's jobs in this test: none at first, kept in memory, gone with it."""
    from stowhand.testing.jobs import jobs_in_memory

    with jobs_in_memory(checked_app(stowhand_app)) as made:
        yield made


def find_app(config: pytest.Config) -> App:
    """The App that the ini file names. Raises pytest.UsageError, which names the file and the option."""
    from stowhand.app.app import App
    from stowhand.errors import ConfigurationError
    from stowhand.tasks.loading import load_object

    file = str(config.inipath or f"pytest.ini or pyproject.toml (of {config.rootpath})")
    named = str(config.getini(OPTION))
    if not named:
        raise pytest.UsageError(
            f"{file}: the fixture 'jobs' needs an App, and no {OPTION} is set; {HOW}, or define a fixture"
            f" {OPTION!r} that gives the App"
        )
    if (here := str(config.rootpath)) not in sys.path:
        sys.path.append(here)
    try:
        return load_object(named, App)
    except ConfigurationError as error:
        raise pytest.UsageError(f"{file}: {OPTION}: {error}; {HOW}") from error


def checked_app(app: object) -> App:
    """What the fixture ``stowhand_app`` gave. Raises pytest.UsageError."""
    from stowhand.app.app import App
    from stowhand.errors import a_type

    if not isinstance(app, App):
        raise pytest.UsageError(f"the fixture {OPTION!r} gave {a_type(app)}; it returns an App")
    return app
