"""Translation of the SQL in this package for an engine.

:name           a value
task IN :tasks  the value is a list
{live_jobs}     the engine's filling of this name: a table, a view or an expression

``FROM {running}`` reads the jobs in an index. The engine's filling is a table with the condition of the index, so
further conditions follow with AND. ``FROM some AS here {next_ready}`` joins each row with a ``job``: the first of the
next priority or task, by one step in an index. ``{next_queued}`` steps to the next priority, task or queue, and
``{next_serial}`` to the next priority, task or serial key.
Names that the fillings must have: ``FILLINGS``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

FILLINGS = (
    *("live_jobs", "past_jobs", "live", "past", "tries", "workers", "app_versions"),
    *("throughput", "total_throughput"),
    *("pauses", "paused_serials", "task_queues"),
    *("next_ready", "next_queued", "next_serial"),
    *(
        "ready",
        "queued",
        "ready_by_place",
        "queued_by_place",
        "serial",
        "suspects",
        "running",
        "failed",
        "troubled",
        "canceled",
    ),
    *("find", "has_flag", "is_forbidden", "lease_until", "on_failure_task", "byte_order"),
)
MAX_CACHED_STATEMENTS = 500
"""Translated statements in the cache. Filters produce a statement for each combination of conditions."""
_PLACEHOLDER = re.compile(r"(?P<column>\w+) IN :(?P<list>\w+)|:(?P<value>\w+)|\{(?P<filling>\w+)\}")


class Dialect:
    """Translator of statements for one engine."""

    def __init__(
        self, fillings: Mapping[str, str], value: Callable[[str], str], is_one_of: Callable[[str, str], str]
    ) -> None:
        """Take the engine's fillings and its notation of values.

        ``value`` returns the placeholder of a named value. ``is_one_of`` returns the condition that a column's value is
        in the named list.
        """
        self._fillings = {name: fillings[name] for name in FILLINGS}
        self._value = value
        self._is_one_of = is_one_of
        self.statement = lru_cache(MAX_CACHED_STATEMENTS)(self._translate)
        """Return a statement's text for the engine."""

    def _translate(self, text: str) -> str:
        return _PLACEHOLDER.sub(self._place, text)

    def _place(self, place: re.Match[str]) -> str:
        if place["list"]:
            return self._is_one_of(place["column"], place["list"])
        if place["value"]:
            return self._value(place["value"])
        return self._fillings[place["filling"]]
