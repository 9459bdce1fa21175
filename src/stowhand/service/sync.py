"""The face for code without an event loop: scripts, Django views, tests. Every method is the asynchronous one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ParamSpec, Unpack

from stowhand.job import Job, NewJob
from stowhand.service.portal import Portal
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.task import ConfiguredTask

if TYPE_CHECKING:
    from stowhand.service.app import App

P = ParamSpec("P")


class Sync:
    """Waits for what the app does, from any number of threads. A thread and connections of its own serve them all."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._portal = Portal()

    def enqueue(self, task: ConfiguredTask[P], /, *args: P.args, **kwargs: P.kwargs) -> Job:
        """As ``Task.enqueue``.

        app.sync.enqueue(send, "x")
        app.sync.enqueue(send.options(delay=60), "x")
        """
        return self._portal.run(lambda: task.enqueue(*args, **kwargs))

    def enqueue_many(self, jobs: Iterable[NewJob]) -> list[int]:
        """As ``App.enqueue_many``. ``jobs`` is iterated in the calling thread, inside its transaction if it has one."""
        return self._portal.run_with(self._app.enqueue_many, jobs)

    def add_job(self, task: str, payload: object = None, **options: Unpack[EnqueueOptions]) -> Job:
        """As ``App.add_job``."""
        return self._portal.run(lambda: self._app.add_job(task, payload, **options))

    def install(self) -> None:
        """Install the schema if there is none (scripts and tests; a worker does it by itself)."""
        self._portal.run(lambda: self._app.open(install=True))

    def close(self) -> None:
        """Let the connections and the thread go. Harmless when repeated; the next use starts anew."""
        if self._portal.started:
            self._portal.run(self._app.close)
        self._portal.close()
