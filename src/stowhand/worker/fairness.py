"""Whose turn it is among tasks, so that no task waits behind the flood of another.

Jobs are claimed in the order (priority, run_at, id), whatever their tasks: a hundred thousand of one task, all due
earlier, keep every other task waiting. A fair worker asks for the tasks that it has not served in this round; when they
have nothing, for all, and a new round begins. Inside one task the order stays, and an idle worker asks once, as ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from stowhand.errors import ConfigurationError

Tasks = tuple[str, ...] | None


class Fairness:
    """Of one worker. Raises ConfigurationError for a fair one of any task: whom to ask for next, it cannot know."""

    def __init__(self, *, fair: bool, tasks: Tasks) -> None:
        if fair and tasks is None:
            raise ConfigurationError("fair: tasks that have no names cannot take turns; give tasks")
        self._fair = fair
        self._served: set[str] = set()
        """In this round."""

    def next(self, tasks: Tasks) -> Tasks:
        """What to ask for, of these. ``tasks`` itself where nobody has to be passed over."""
        if not self._served or tasks is None:
            return tasks
        left = tuple(task for task in tasks if task not in self._served)
        if left:
            return left
        self._served.clear()
        return tasks

    def served(self, tasks: Iterable[str], *, full: bool, round_open: bool) -> None:
        """What a claim brought. ``full``: there may be more of it; ``round_open``: it passed somebody over."""
        if not self._fair:
            return
        if full or round_open:
            self._served.update(tasks)
        else:
            self._served.clear()  # everything that was due is here: nobody waits behind anybody

    def restart(self) -> None:
        """Those whose turn it was have nothing."""
        self._served.clear()
