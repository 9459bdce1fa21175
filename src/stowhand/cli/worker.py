"""``stowhand worker``: run a worker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import click

from stowhand.app.settings.resolver import unknown_variables
from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.help import Command
from stowhand.cli.migrate import migrate
from stowhand.cli.options import settings_of, take_app, worker_options
from stowhand.cli.session import log_store
from stowhand.cli.web import dashboard_beside
from stowhand.observe.job_logger import core_logger
from stowhand.service.children import stop_with_parent
from stowhand.service.exit_codes import OK

HOW_TO_WRITE_A_TASK = """\
A task is a function in a file of that folder, for example tasks/hello.py:

    async def hello(payload, helpers):
        helpers.logger.info(f"Hello, {payload['name']}")

Or name your App: stowhand worker MODULE:APP, as in shop.jobs:app."""


@click.command(cls=Command, explains_settings=True)
@click.option("--beside", is_flag=True, hidden=True, help="Of stowhand dev: ends with its standard input.")
@worker_options
def command(beside: bool, **option_values: Any) -> int:
    """Run a worker: claim jobs and run them.

    MODULE:APP is your App, such as shop.jobs:app; the default is the folder tasks/. The store is the App's, the one
    that the environment names, or the file stowhand.db. The first Ctrl-C lets running jobs finish, the second returns
    them to the queue.
    """
    take_app(option_values)
    settings = settings_of(option_values)
    if not settings.schema_only:
        check_tasks(settings)
    _log_store(settings)
    if settings.schema_only:
        core_logger().info(asyncio.run(migrate(settings.store)))
        return OK
    from stowhand.service.run import run_worker

    if beside:
        stop_with_parent()
    with dashboard_beside(settings.web, option_values):
        return run_worker(settings)


def check_tasks(settings: WorkerSettings) -> None:
    """Refuse to start without any tasks, and show how to write one. The loader checks named tasks."""
    if settings.tasks is not None and Path(settings.tasks).is_file():
        raise click.UsageError(
            f"--tasks {settings.tasks}: a file; name its folder, or the App in it: stowhand worker"
            f" {Path(settings.tasks).stem}:app"
        )
    if settings.app is None and settings.tasks is None and not Path("tasks").is_dir():
        raise click.UsageError(f"no tasks: there is no folder tasks/ in {Path.cwd()}.\n{HOW_TO_WRITE_A_TASK}")


def _log_store(settings: WorkerSettings) -> None:
    log_store(settings.store.connection)
    for _, message in unknown_variables(os.environ):
        core_logger().warning(message)
