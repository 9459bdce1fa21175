"""Worker and queue as a library of functions, for programs that prefer functions to an ``App``.

runner.py        run, run_once, run_migrations, and the Runner
worker_utils.py  make_worker_utils, quick_add_job, WorkerUtils: enqueueing and administration without a worker
options.py       the options of these functions, and the store that they name
events.py        WorkerEvents, the names and records of its events, and the pool that listeners see
observer.py      makes these events from those of the core

Each name is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowhand.lazy_names import lazy_names

if TYPE_CHECKING:
    from stowhand.cron.crontab import parse_cron_items, parse_crontab
    from stowhand.cron.item import CronDate, CronItem, CronOptions
    from stowhand.observe.log_factory import Logger
    from stowhand.runner.events import WorkerEvents
    from stowhand.runner.runner import Runner, run, run_migrations, run_once
    from stowhand.runner.worker_utils import WorkerUtils, make_worker_utils, quick_add_job
    from stowhand.tasks.context import BlockingHelpers, Helpers

_NAMES_BY_MODULE = {
    "cron.crontab": "parse_cron_items parse_crontab",
    "cron.item": "CronDate CronItem CronOptions",
    "observe.log_factory": "Logger",
    "runner.events": "WorkerEvents",
    "runner.runner": "Runner run run_migrations run_once",
    "runner.worker_utils": "WorkerUtils make_worker_utils quick_add_job",
    "tasks.context": "BlockingHelpers Helpers",
}

__all__ = [
    "BlockingHelpers",
    "CronDate",
    "CronItem",
    "CronOptions",
    "Helpers",
    "Logger",
    "Runner",
    "WorkerEvents",
    "WorkerUtils",
    "make_worker_utils",
    "parse_cron_items",
    "parse_crontab",
    "quick_add_job",
    "run",
    "run_migrations",
    "run_once",
]


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _NAMES_BY_MODULE)
