"""The system checks: each wrong setting, with what to write instead."""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import connections
from django.test import override_settings
from django.utils.module_loading import import_string

from stowhand.django import StowhandBackend
from stowhand.django.project import app_of
from stowhand.errors import ConfigurationError


def found(options: dict[str, Any], **database: Any) -> list[str]:
    """The ids of what the checks find, each with a hint where there is one to give."""
    values = {"transaction_mode": "IMMEDIATE"} | database
    with mock.patch.dict(connections["default"].settings_dict, OPTIONS=values):
        messages = StowhandBackend("default", {"OPTIONS": options}).check()
    return [one.id for one in messages if one.hint or one.id in ("stowhand.E003", "stowhand.E004")]


def test_valid_settings_have_no_findings(site: None) -> None:
    assert found({}) == []
    assert found({}, init_command="PRAGMA journal_mode = WAL;") == []


@pytest.mark.parametrize(
    ("database", "wrong"),
    [
        ({"transaction_mode": None}, "stowhand.W001"),
        ({"transaction_mode": "DEFERRED"}, "stowhand.W001"),
    ],
)
def test_settings_of_sqlite(site: None, database: dict[str, Any], wrong: str) -> None:
    assert found({}, **database) == [wrong]


def test_a_database_that_is_not_there(site: None) -> None:
    assert found({"database": "orders"}) == ["stowhand.E001"]


def test_a_missing_app_is_an_error(site: None) -> None:
    with override_settings(INSTALLED_APPS=["tests.django.site.shop"]):
        assert found({}) == ["stowhand.E002"]


def test_a_module_that_cannot_be_imported_is_an_error(site: None) -> None:
    assert found({"modules": ["shop.nowhere"]}) == ["stowhand.E004"]


def test_postgresql_without_a_driver_that_jobs_can_use(site: None) -> None:
    """Of psycopg 3 the libraries are missing: Django takes psycopg2 then."""
    without = {"stowhand.stores.postgres.queue.on_connection": None}
    with mock.patch.dict(sys.modules, without):
        (one,) = StowhandBackend("postgres", {"OPTIONS": {"database": "postgres"}}).check()
    assert (one.id, "need psycopg 3" in one.msg) == ("stowhand.E003", True)


def test_an_unknown_setting_is_a_warning(site: None) -> None:
    options = {"BACKEND": "stowhand.django.StowhandBackend", "QUEUE": ["heavy"]}
    with override_settings(TASKS={"default": options}):
        assert found({}) == ["stowhand.W003"]


ADD = "tests.django.site.shop.tasks.add"


@pytest.mark.parametrize(
    "item",
    [
        ("0 3 * * *", "shop.tasks.nothing"),
        ("0 3 * * *",),
        "0 3 * * *",
        ("at three", ADD),
        ("0 3 * * *", ADD, [1]),
        ("0 3 * * *", ADD, {"one": 1}, 2),
        ("0 3 * * *", ADD, {"one": 1}, "Europe/Bern"),
        ("0 3 * * *", ADD, {"on": 1}),
        ("0 3 * * *", ADD),
    ],
)
def test_an_invalid_recurring_task_is_an_error(site: None, item: object) -> None:
    assert found({"cron": {"nightly": item}}) == ["stowhand.E005"]
    assert found({"cron": {"nightly": ["0 3 * * *", ADD, {"one": 1}]}}) == []
    assert found({"cron": {"nightly": ["0 3 * * *", ADD, {"one": 1}, "Europe/Berlin"]}}) == []


def test_errors_of_recurring_tasks_have_no_line_of_django(site: None) -> None:
    (one,) = StowhandBackend("default", {"OPTIONS": {"cron": {"nightly": ("at three", ADD, {"one": 1})}}}).check()[-1:]
    assert one.msg.startswith("TASKS['default']: OPTIONS['cron']['nightly']: App.cron (nightly): match 'at three'")
    (one,) = StowhandBackend("default", {"OPTIONS": {"cron": {"nightly": ("0 3 * * *", ADD, {"on": 1})}}}).check()[-1:]
    assert one.msg == f"TASKS['default']: OPTIONS['cron']['nightly']: {ADD}: missing a required argument: 'one'."


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"QUEUES": "heavy"}, "['QUEUES']: got a str; use a list: ['heavy']"),
        ({"QUEUES": None}, "['QUEUES']: got a NoneType; use a list: ['default']"),
        ({"QUEUES": ["default", 3]}, "['QUEUES']: 3 is not a queue name; write 'default'"),
        ({"QUEUES": ["default", ["heavy"]]}, "['QUEUES']: ['heavy'] is not a queue name; write 'default'"),
        ({"QUEUES": ["default", ""]}, "['QUEUES']: '' is not a queue name; write 'default'"),
        ({"OPTIONS": ["database"]}, "['OPTIONS']: got a list; use {'database': 'default'}"),
        ({"OPTIONS": None}, "['OPTIONS']: got a NoneType; use {'database': 'default'}"),
    ],
)
def test_settings_on_which_django_would_fail_are_named(site: None, params: dict[str, Any], said: str) -> None:
    _is_told(StowhandBackend("default", params), re.escape(f"TASKS['default']{said}"))


def test_an_invalid_queue_name_is_an_error(site: None) -> None:
    task = import_string(ADD)
    queue = task.queue_name
    object.__setattr__(task, "queue_name", "q" * 129)
    try:
        (one,) = StowhandBackend("postgres", {"QUEUES": [], "OPTIONS": {}}).check()[:1]
    finally:
        object.__setattr__(task, "queue_name", queue)
    assert one.id == "stowhand.E006"
    assert one.msg.startswith(f"TASKS['postgres']: no worker could start: task '{ADD}': queue: 129 characters")


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"databse": "default"}, r"no option 'databse'; available: database: "),
        ({"modules": "shop.jobs"}, r"modules: got a str; use a list"),
        ({"modules": ["shop/jobs.py"]}, r"modules: 'shop/jobs.py'; write a module as in"),
        ({"cron": ["nightly"]}, r"cron: got a list; use \{'nightly': \("),
        ({"max_attempts": 0}, r"max_attempts: got 0"),
        ({"database": ["default"]}, r"database: got a list; use an alias of DATABASES: 'default'"),
        ({"schema": 3}, r"schema: got an int"),
    ],
)
def test_an_invalid_option_is_an_error(site: None, option: dict[str, object], said: str) -> None:
    _is_told(StowhandBackend("default", {"OPTIONS": option}), rf"TASKS\['default'\]\['OPTIONS'\]: {said}")


def _is_told(backend: StowhandBackend, said: str) -> None:
    """By ``check``, and by all that a project does with it; Django starts."""
    (one,) = backend.check()
    assert one.id == "stowhand.E007"
    assert re.match(said, one.msg)
    enqueue = partial(backend.enqueue, import_string(ADD), [1], {})
    for use in (enqueue, partial(backend.get_result, "1"), partial(app_of, backend)):
        with pytest.raises(ConfigurationError, match=said):
            use()
