"""Tasks take turns, so that none waits behind the flood of another.

Jobs are claimed in the order (priority, run_at, id), whatever their tasks: a hundred thousand of one task, all due
earlier, keep every other task waiting. A fair worker claims jobs of the tasks that it has not served in this round;
when they have none, of all tasks, and a new round begins. Within one task the order stays; an idle worker
claims once.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.errors import ConfigurationError
from stowhand.worker.leases import Held

Tasks = tuple[str, ...] | None


class Fairness:
    """Of one fair worker. Raises ConfigurationError for one without a list of tasks: it could name none next."""

    def __init__(self, tasks: Tasks) -> None:
        if tasks is None:
            raise ConfigurationError("fair: tasks that have no names cannot take turns; give tasks")
        self._served: set[str] = set()
        """In this round."""

    def next(self, tasks: Tasks) -> Tasks:
        """Of which of these to claim. ``tasks`` itself where none is passed over."""
        if not self._served or tasks is None:
            return tasks
        unserved = tuple(task for task in tasks if task not in self._served)
        if unserved:
            return unserved
        self._served.clear()
        return tasks

    def served(self, claimed: Sequence[Held], *, full: bool, round_open: bool) -> None:
        """A claim brought these. ``full``: there may be more; ``round_open``: it passed some tasks over."""
        if full or round_open:
            self._served.update(held.claim.task for held in claimed)
        else:
            self._served.clear()  # everything that was due is here: no task waits behind another

    def restart(self) -> None:
        """The tasks whose turn it was have no jobs."""
        self._served.clear()
