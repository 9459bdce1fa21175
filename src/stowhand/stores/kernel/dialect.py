"""Translation of the SQL in this package for an engine.

:name           a value
task IN :tasks  the value is a list
{live_jobs}     the engine's filling of this name: a table, a view or an expression

``FROM {running}`` reads the jobs in an index. The engine's filling is a table with the condition of the index, so
further conditions follow with AND. ``FROM rows AS here {next_ready}`` joins each row with a ``job``: the first of the
next priority or task, by one step in an index. ``{next_queued}`` steps to the next priority, task or queue, and
``{next_serial}`` to the next priority, task or serial key.
``FILLING_NAMES`` lists the fillings that an engine supplies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache

FILLING_NAMES = (
    *("live_jobs", "past_jobs", "live", "past", "tries", "workers", "app_versions"),
    *("throughput", "total_throughput"),
    *("pauses", "paused_serials", "task_queues"),
    *("limits", "task_limits", "limit_keys", "slots"),
    "steps",
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
_PLACEHOLDER_PATTERN = re.compile(r"(?P<column>\w+) IN :(?P<list>\w+)|:(?P<value>\w+)|\{(?P<filling>\w+)\}")


class Dialect:
    """Translator of statements for one engine."""

    def __init__(
        self,
        fillings: Mapping[str, str],
        format_value: Callable[[str], str],
        format_membership: Callable[[str, str], str],
    ) -> None:
        """Take the engine's fillings and its notation of values.

        ``value`` returns the placeholder of a named value. ``is_one_of`` returns the condition that a column's value is
        in the named list.
        """
        self._fillings = {name: fillings[name] for name in FILLING_NAMES}
        self._format_value = format_value
        self._format_membership = format_membership
        self.statement = lru_cache(MAX_CACHED_STATEMENTS)(self._translate)
        """Return a statement's text for the engine."""

    def _translate(self, text: str) -> str:
        return _PLACEHOLDER_PATTERN.sub(self._translate_placeholder, text)

    def _translate_placeholder(self, match: re.Match[str]) -> str:
        if match["list"]:
            return self._format_membership(match["column"], match["list"])
        if match["value"]:
            return self._format_value(match["value"])
        return self._fillings[match["filling"]]
