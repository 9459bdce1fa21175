"""Django's own tests of its tasks, with our backend in the place of its own.

They come from Django's source distribution (scripts/django-tests). Two names in them are replaced, those of Django's
two backends, by those of tests/django/site/own.py. What differs is listed by the name of the test, with why.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest

from tests.support.sources import ROOT

IN_MEMORY = (
    "it changes a result in the dummy's memory, where ours has a row: a worker's end is refreshed in test_worker"
)
IN_A_COROUTINE = (
    "it calls get_result in a coroutine, where Django refuses a query: aget_result is asked in test_backend"
)
ABLE = "it expects what Django's immediate backend cannot do, and ours can: test_backend"
DIFFERENT = {
    "test_dummy_backend.DummyBackendTestCase.test_get_missing_result": IN_A_COROUTINE,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result": IN_MEMORY,
    "test_dummy_backend.DummyBackendTestCase.test_refresh_result_async": IN_MEMORY,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_get_result": ABLE,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_refresh_result": ABLE,
    "test_immediate_backend.ImmediateBackendTestCase.test_cannot_pass_run_after": ABLE,
    "test_tasks.TaskTestCase.test_get_missing_result": IN_A_COROUTINE,
    "test_tasks.TaskTestCase.test_refresh_result": IN_MEMORY,
}
"""Test: why it does not hold. Each has a test of ours in its place."""


def _folder() -> Path:
    older = ["--older"] if django.VERSION[:2] == (6, 0) else []
    place = subprocess.run([ROOT / "scripts" / "django-tests", *older], stdout=subprocess.PIPE, text=True, check=True)
    return ROOT / place.stdout.strip() / "tasks"


FOLDER = _folder()


def _names() -> Iterator[str]:
    for file in sorted(FOLDER.glob("test_*.py")):
        for one in ast.parse(file.read_text()).body:
            if isinstance(one, ast.ClassDef):
                for method in one.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.startswith("test"):
                        yield f"{file.stem}.{one.name}.{method.name}"


NAMES = list(_names())


@pytest.fixture(scope="module")
def package(site: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Their package, with the two names replaced."""
    from tests.django.site import own
    from tests.django.site.shop import tasks  # noqa: F401 - under the settings of the site

    place = tmp_path_factory.mktemp("own")
    (place / own.PACKAGE).mkdir()
    for file in FOLDER.glob("*.py"):
        text = file.read_text()
        for kind in ("dummy", "immediate"):
            text = text.replace(f"django.tasks.backends.{kind}", own.__name__)
        (place / own.PACKAGE / file.name).write_text(text)
    sys.path.insert(0, str(place))
    yield own.PACKAGE
    sys.path.remove(str(place))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in DIFFERENT])
@pytest.mark.parametrize("database", ["default", "postgres"])
def test_of_django(package: str, database: str, name: str) -> None:
    from tests.django.site import own

    own.WHERE["alias"] = database
    module, kind, method = name.split(".")
    theirs: Any = getattr(importlib.import_module(f"{package}.{module}"), kind)
    # Theirs ask no database, and Django refuses them one.
    case = type(kind, (theirs,), {"databases": {"default", database}})(method)
    outcome = unittest.TestResult()
    unittest.TestSuite([case]).run(outcome)
    lines = [text for _, text in (*outcome.failures, *outcome.errors)]
    assert not lines, lines[0]
    assert (outcome.testsRun, outcome.skipped) == (1, [])


def test_all_of_them_are_there() -> None:
    assert len(NAMES) == {(6, 1): 85, (6, 0): 76}[django.VERSION[:2]]
    assert set(DIFFERENT) <= set(NAMES)
