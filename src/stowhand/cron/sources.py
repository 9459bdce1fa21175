"""The recurring items of an App, and a scheduler beside its worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict

from stowhand.cron.check import PYTHON_NAMES
from stowhand.cron.crontab import parse_app_item, parse_crontab, refuse_duplicates
from stowhand.cron.item import CronItem, CronOptions, Match, ParsedItem
from stowhand.cron.scheduler import Scheduler
from stowhand.errors import ConfigurationError, InvalidJob, a_type, suggest
from stowhand.jobs import strict_json
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import NewJob
from stowhand.jobs.queues import DEFAULT_QUEUE
from stowhand.observe.job_logger import core_logger
from stowhand.protocols.queue_store import QueueStore
from stowhand.tasks.registry import Registry
from stowhand.tasks.task import ConfiguredTask
from stowhand.worker.worker import Worker

_SAMPLE_TICK = {"ts": "", "backfilled": False}


class CronSources(TypedDict, total=False):
    """Sources of a worker's recurring items, besides those that its App declares."""

    crontab: str
    """The text of a crontab."""
    crontab_file: str | Path
    """The path of one, read when the worker is made."""
    cron_items: Iterable[ParsedItem]
    """Items from ``parse_crontab`` or ``parse_cron_items``."""


class CronKeywords(TypedDict, total=False):
    """Options of ``App.cron``, named as in an enqueue call. Absent ones have the task's value, or the default."""

    backfill_period: Duration
    """Period in which missed ticks are backfilled, as in ``CronOptions``."""
    max_attempts: int | None
    queue: str | None
    """The queue; in a crontab ``?work_queue=``."""
    serial: str | None
    """The serial key; in a crontab ``?queue=``."""
    priority: int | None
    key: str | None
    key_mode: Literal["replace", "preserve_run_at"] | None


class RecurringWorker(Worker):
    """A worker with a scheduler beside it, if there is one, from its start to its end."""

    def __init__(self, scheduler: Scheduler | None, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._scheduler = scheduler

    async def run(self) -> None:
        """Run like any worker. With ``once``, schedule the due ticks first."""
        if self._scheduler is None:
            await super().run()
            return
        async with scheduling(self._scheduler, once=self.options.once):
            await super().run()


@asynccontextmanager
async def scheduling(scheduler: Scheduler, *, once: bool = False) -> AsyncIterator[None]:
    """Run a scheduler within the block. ``once``: only schedule the due ticks before it."""
    if once:
        await scheduler.run_once()
        yield
        return
    running = asyncio.get_running_loop().create_task(scheduler.run(), name="stowhand scheduler")
    try:
        yield
    finally:
        scheduler.stop()
        await running


def schedulable(items: tuple[ParsedItem, ...], store: QueueStore) -> tuple[ParsedItem, ...]:
    """Return the items, or none for a remote store, whose own workers schedule them."""
    if items and store.capabilities.lent:
        core_logger().warning(
            f"{len(items)} recurring items are not scheduled, because the store is remote. Schedule them with a worker"
            " or a scheduler that opens the store directly."
        )
        return ()
    return items


def read_crontab(file: Path) -> tuple[ParsedItem, ...]:
    """Return the items of a crontab file. Raises ConfigurationError if it cannot be read, or for all invalid lines."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigurationError(f"crontab {file}: the file is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigurationError(f"crontab {file}: {reason}") from None
    return parse_crontab(text, str(file))


def items_of(sources: CronSources) -> tuple[ParsedItem, ...]:
    """Return the items of all sources. Raises ConfigurationError."""
    items: list[ParsedItem] = []
    if sources.get("crontab") is not None:
        items += parse_crontab(sources["crontab"])
    file: object = sources.get("crontab_file")
    if file is not None:
        if not isinstance(file, str | Path):
            raise ConfigurationError(f"crontab_file: got {a_type(file)}; use a path")
        items += read_crontab(Path(file))
    parsed_items: object = sources.get("cron_items") or ()
    for item in parsed_items if isinstance(parsed_items, Iterable) else [parsed_items]:
        if not isinstance(item, ParsedItem):
            raise ConfigurationError(
                f"cron_items: got {a_type(item)}; use what parse_crontab or parse_cron_items returns"
            )
        items.append(item)
    return refuse_duplicates(items)


def declared(items: Iterable[ParsedItem], tasks: Registry) -> tuple[ParsedItem, ...]:
    """Return the items with the declared options of their tasks, which apply where an item sets none.

    Raises ConfigurationError that names every item whose task does not take its payload.
    """
    checked, problems = [], []
    for item in items:
        task = tasks.find(item.task)
        if task is None:
            checked.append(item)
            continue
        try:
            task.shape.write_value({**item.payload, "_cron": _SAMPLE_TICK})
            checked.append(item.declared(task.template).with_job_rules(task.with_job_rules, task.template))
        except InvalidJob as error:
            problems.append(f"{item.position}: {error}")
    if problems:
        raise ConfigurationError("\n".join(problems))
    return tuple(checked)


def declare_item(
    pattern: str | Match,
    task: ConfiguredTask[..., object] | str,
    payload: Mapping[str, object] | None,
    identifier: str | None,
    tz: str | None,
    options: CronKeywords,
) -> ParsedItem:
    """Return the item that ``App.cron`` declares. Raises ConfigurationError, also if the task rejects the payload."""
    for option in options:
        if option not in CronKeywords.__annotations__:
            known_options = ("identifier", "tz", *CronKeywords.__annotations__)
            raise ConfigurationError(f"App.cron: no option {option!r}{suggest(option, known_options)}")
    value: object = task
    if not isinstance(value, str | ConfiguredTask):
        raise ConfigurationError(f"App.cron: got {a_type(value)}; use a task declared with @app.task, or a task's name")
    if isinstance(task, str):
        return _app_item(pattern, task, payload, identifier, tz, dict(options))
    values = _from_template(task.template, with_key="key" not in options) | dict(options)
    try:
        written = task.definition.shape.write_value({**(payload or {}), "_cron": _SAMPLE_TICK})
        item = _app_item(pattern, task.name, strict_json.decode(written), identifier, tz, values)
        return item.with_job_rules(task.definition.with_job_rules, task.template)
    except InvalidJob as error:
        hint = f"; use the arguments: app.cron(…, {task.name}, {{…}})" if payload is None else ""
        raise ConfigurationError(f"App.cron: {error}{hint}") from None


def _app_item(
    pattern: str | Match, task: str, payload: object, identifier: str | None, tz: str | None, options: dict[str, Any]
) -> ParsedItem:
    cron_options = CronOptions(**{PYTHON_NAMES.get(option, option): value for option, value in options.items()})
    return parse_app_item(
        CronItem(task=task, match=pattern, identifier=identifier, payload=payload, options=cron_options, tz=tz)
    )


def _from_template(job: NewJob, *, with_key: bool) -> dict[str, Any]:
    """Return the options of the task's jobs that an item may have; the key only if ``with_key``."""
    for name in ("flags", "max_resets", "delay", "run_at"):
        if getattr(job, name) not in (None, ()):
            raise ConfigurationError(f"App.cron: task {job.task!r} has {name}, which a recurring job cannot have")
    key = {"key": job.key, "key_mode": job.key_mode.value} if with_key and job.key is not None else {}
    queue = None if job.queue == DEFAULT_QUEUE else job.queue
    return {"serial": job.serial, "queue": queue, "priority": job.priority, "max_attempts": job.max_attempts, **key}
