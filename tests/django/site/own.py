"""Our backend in the place of Django's own, for Django's own tests: with what these ask of it besides."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from django.db import connections
from django.tasks import base
from django.tasks.exceptions import TaskResultDoesNotExist

from stowhand.django import StowhandBackend
from stowhand.django.database import Database
from stowhand.django.testing import drain
from stowhand.protocols.store import StoreOptions

PACKAGE = "tasks"
WHERE = {"alias": "default"}
"""Of DATABASES, where the next backend that is made keeps its jobs."""


class DummyBackend(StowhandBackend):
    """Nothing is run."""

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._database = Database(WHERE["alias"], StoreOptions())
        self.modules = (f"{PACKAGE}.tasks", f"{PACKAGE}.test_tasks")

    def clear(self) -> None:
        """Removes all jobs."""
        tables = ("stowhand_jobs",) if self.database.vendor == "sqlite" else ("stowhand.live", "stowhand.history")
        with connections[self.database.alias].cursor() as cursor:
            for table in tables:
                cursor.execute(f"delete from {table}")

    @property
    def results(self) -> list[base.TaskResult]:
        """Of all jobs. Django's tests ask for them inside a coroutine, too, as of a list in memory."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._results()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._results_there).result()

    def _results_there(self) -> list[base.TaskResult]:
        try:
            return self._results()
        finally:
            connections.close_all()

    def _results(self) -> list[base.TaskResult]:
        table = "stowhand_jobs" if self.database.vendor == "sqlite" else "stowhand.live"
        with connections[self.database.alias].cursor() as cursor:
            cursor.execute(f"select id from {table} order by id")
            return [self.get_result(str(id_)) for (id_,) in cursor.fetchall()]


class ImmediateBackend(DummyBackend):
    """Enqueue, drain, refresh."""

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        self._database = Database(WHERE["alias"], StoreOptions(max_attempts=1))

    def enqueue(self, task: base.Task, args: Sequence[Any], kwargs: Mapping[str, Any]) -> base.TaskResult:
        result = super().enqueue(task, args, kwargs)
        drain(self.alias, raises=False)
        try:
            result.refresh()
        except TaskResultDoesNotExist as error:
            raise AssertionError("it is kept when it has ended") from error
        return result
