"""The system checks: each wrong setting, with what to write instead."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from django.db import connections
from django.test import override_settings

from stowhand.django import StowhandBackend
from stowhand.errors import ConfigurationError


def found(options: dict[str, Any], **database: Any) -> list[str]:
    """The ids of what the checks find, each with a hint where there is one to give."""
    given = {"transaction_mode": "IMMEDIATE"} | database
    with mock.patch.dict(connections["default"].settings_dict, OPTIONS=given):
        messages = StowhandBackend("default", {"OPTIONS": options}).check()
    return [one.id for one in messages if one.hint or one.id in ("stowhand.E003", "stowhand.E004")]


def test_what_is_right_is_said_nothing_of(site: None) -> None:
    assert found({}) == []
    assert found({}, init_command="PRAGMA journal_mode = WAL;") == []


@pytest.mark.parametrize(
    ("database", "wrong"),
    [
        ({"transaction_mode": None}, "stowhand.W001"),
        ({"transaction_mode": "DEFERRED"}, "stowhand.W001"),
        ({"init_command": "PRAGMA journal_mode=DELETE"}, "stowhand.W002"),
    ],
)
def test_settings_of_sqlite(site: None, database: dict[str, Any], wrong: str) -> None:
    assert found({}, **database) == [wrong]


def test_a_database_that_is_not_there(site: None) -> None:
    assert found({"database": "orders"}) == ["stowhand.E001"]


def test_an_app_that_is_not_installed(site: None) -> None:
    with override_settings(INSTALLED_APPS=["tests.django.site.shop"]):
        assert found({}) == ["stowhand.E002"]


def test_a_module_that_cannot_be_imported(site: None) -> None:
    assert found({"modules": ["shop.nowhere"]}) == ["stowhand.E004"]


@pytest.mark.parametrize("item", [("0 3 * * *", "shop.tasks.nothing"), ("0 3 * * *",)])
def test_what_recurs_and_is_no_task(site: None, item: tuple[str, ...]) -> None:
    assert found({"cron": {"nightly": item}}) == ["stowhand.E005"]


def test_an_option_that_is_none(site: None) -> None:
    with pytest.raises(ConfigurationError, match="no option 'databse'"):
        StowhandBackend("default", {"OPTIONS": {"databse": "default"}})
