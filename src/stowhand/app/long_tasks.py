"""Tasks whose timeout is longer than the grace of a stop."""

from __future__ import annotations

from collections.abc import Iterable

from stowhand.app.presets import SERVICE
from stowhand.jobs.durations import say_duration
from stowhand.observe.job_logger import core_logger
from stowhand.observe.safe_text import escape
from stowhand.tasks.registry import TaskDefinition

SHOWN = 20
"""Tasks named in one line, at most."""


def warn_of_long_tasks(tasks: Iterable[TaskDefinition], preset: str, grace: float, option: str) -> None:
    """Warn at the start of a worker. Only with the preset ``service`` is a stop meant to let everything end; for the
    others ``stowhand doctor`` reports it."""
    if preset == SERVICE and (warning := cut_short(tasks, grace, option)) is not None:
        core_logger().warning(warning)


def cut_short(tasks: Iterable[TaskDefinition], grace: float, option: str) -> str | None:
    """A warning about tasks with a timeout of their own that is longer than the grace; ``None``: there are none.

    ``option``: the name of the grace in the message.
    """
    longer = [one for one in tasks if one.timeout is not None and one.timeout > grace]
    if not longer:
        return None
    named = ", ".join(f"{escape(one.name)} ({say_duration(one.timeout or 0.0)})" for one in longer[:SHOWN])
    more = f" and {len(longer) - SHOWN} more" if len(longer) > SHOWN else ""
    return (
        f"A stop leaves running jobs {say_duration(grace)} ({option}); tasks that may take longer are handed"
        f" back then, and begin anew elsewhere: {named}{more}"
    )
