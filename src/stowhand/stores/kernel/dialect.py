"""How SQL of this room becomes an engine's.

:name           a value
task IN :tasks  the value is a list
{live_jobs}     what the engine has under this name: a table, a view, an expression

``FROM {running}`` reads what an index holds: the engine's filling is a table with the condition of the index, so that
further conditions follow with AND. ``FROM some AS here {next_ready}`` joins each row with a ``job``: the first of the
next priority or task, by a step in an index; ``{next_queued}`` and ``{next_serial}``: of the next priority, task or
queue, or serial key.
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
"""Statements that are kept: those of a filter differ by what is asked."""
_PLACEHOLDER = re.compile(r"(?P<column>\w+) IN :(?P<list>\w+)|:(?P<value>\w+)|\{(?P<filling>\w+)\}")


class Dialect:
    """Of one engine."""

    def __init__(
        self, fillings: Mapping[str, str], value: Callable[[str], str], is_one_of: Callable[[str, str], str]
    ) -> None:
        """``value``: a place by its name; ``is_one_of``: a column's value is in the list of that name."""
        self._fillings = {name: fillings[name] for name in FILLINGS}
        self._value = value
        self._is_one_of = is_one_of
        self.statement = lru_cache(MAX_CACHED_STATEMENTS)(self._translate)
        """The text for the engine."""

    def _translate(self, text: str) -> str:
        return _PLACEHOLDER.sub(self._place, text)

    def _place(self, place: re.Match[str]) -> str:
        if place["list"]:
            return self._is_one_of(place["column"], place["list"])
        if place["value"]:
            return self._value(place["value"])
        return self._fillings[place["filling"]]
