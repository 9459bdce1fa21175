"""``stowhand enqueue``: enqueue one job from the command line; its id on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.help import Command
from stowhand.cli.input import Read, with_options
from stowhand.cli.options import completing, otel_option, settings_of, store_options, tasks_option
from stowhand.cli.session import with_store
from stowhand.errors import InvalidJob, StoreError, hint
from stowhand.jobs import limits
from stowhand.jobs.durations import RunTime, parse_duration, parse_run_time
from stowhand.jobs.fields import NEW_JOB_FIELDS, OPTIONS, Field, Kind, flag_of
from stowhand.jobs.job import Job, KeyMode
from stowhand.jobs.strict_json import SIZE_LIMIT
from stowhand.protocols.operator import BUILT_IN
from stowhand.protocols.options import one_of
from stowhand.protocols.queue_store import QueueStore
from stowhand.tasks.options import EnqueueOptions
from stowhand.tasks.registry import Registry

if TYPE_CHECKING:
    from stowhand.observe.traces import Traces


F = TypeVar("F", bound=Callable[..., Any])
when_option = click.option(
    "--run-at",
    "when",
    metavar="WHEN",
    type=Read(parse_run_time),
    default=RunTime,
    help="2030-01-31T09:00:00Z, or a delay: +5m.",
)


FLAGS = tuple(field for field in (*OPTIONS, *NEW_JOB_FIELDS) if field.flag)


def _flag(field: Field) -> Callable[[F], F]:
    metavar, kind = _KINDS[field.kind]
    return click.option(
        field.name, flag_of(field), type=kind, metavar=metavar, multiple=field.kind is Kind.NAMES, help=field.flag
    )


_KINDS: dict[Kind, tuple[str, Any]] = {
    Kind.TEXT: ("TEXT", str),
    Kind.WHOLE: ("N", int),
    Kind.SECONDS: ("DURATION", Read(parse_duration)),
    Kind.NAMES: ("NAME", str),
}


PAYLOAD = """the arguments of the task are one JSON value, in quotes: stowhand enqueue send '{"to": "ada"}'"""


@click.command(cls=Command, on_extra=PAYLOAD)
@click.argument("task")
@click.argument("payload", metavar="[JSON]", default="{}")
@when_option
@with_options(*map(_flag, FLAGS))
@click.option(
    "--key-mode",
    metavar="MODE",
    type=Read(lambda text: KeyMode(one_of(text.replace("-", "_"), KeyMode))),
    help=f"{', '.join(KeyMode)}.  [default: replace]",
    shell_complete=completing(KeyMode),
)
@tasks_option
@otel_option
@store_options
def command(
    task: str,
    payload: str,
    when: RunTime,
    key_mode: KeyMode | None,
    **typed: Any,
) -> None:
    """Enqueue a job and print its id.

    TASK is its name. JSON is its payload: {} if not given; - reads it from stdin.

    Any task name is accepted, because only workers know the tasks. With --tasks or --app the name and the payload are
    checked, and what the task declares holds where no option says otherwise.
    """
    if key_mode is not None and typed["key"] is None:
        raise click.UsageError("--key-mode says what to do with a job that has the key: give --key too")
    settings = settings_of(typed)
    said = {"run_at": when.run_at, "delay": when.delay, "key_mode": key_mode}
    said |= {field.name: typed[field.name] for field in FLAGS}
    tasks, traces = _known(settings, task, named=typed.get("tasks") is not None)
    text = _read_stdin() if payload == "-" else payload
    options = cast("EnqueueOptions", {k: v for k, v in said.items() if v not in (None, ())})
    built_in = task in BUILT_IN
    try:
        job = limits.check(tasks.enqueued(tasks.new_job_of_text(task, text, options)), built_in=built_in)
    except InvalidJob as error:
        if "JSON is malformed" in str(error):
            raise InvalidJob(f"{error}; {PAYLOAD}") from None
        raise

    is_checked = built_in or task in tasks

    async def add(store: QueueStore) -> tuple[Job, str]:
        added = await (store.admin.add_built_in(job) if built_in else store.jobs.enqueue(job))
        return added, "" if is_checked or not is_watched() else await _doubt(store, task)

    added, doubt = with_store(settings.store, add, traces)
    click.echo(added.id)
    if doubt:
        click.echo(doubt, err=True)


def is_watched() -> bool:
    """Return whether a person reads the notes: scripts need none, and pay no question for them."""
    return sys.stderr.isatty()


async def _doubt(store: QueueStore, task: str) -> str:
    """Return a note to the person at the terminal if no worker has the task, which a misspelt name looks like."""
    try:
        cards = [row.card for row in await store.inspect.workers() if row.alive]
    except StoreError:  # such as a login that may only enqueue
        return ""
    known = {name for card in cards for name in card.tasks or ()}
    if not cards or task in known or any(card.tasks is None for card in cards):
        return ""
    return f"note: no running worker has a task {task!r}{hint(task, known) or '; the job waits until one has'}"


def _known(settings: WorkerSettings, task: str, *, named: bool) -> tuple[Registry, Traces | None]:
    """The tasks whose declarations hold, and what makes spans here, if anything: ``--otel``, or the App.

    Nothing is loaded unless an App or a folder of tasks is ``named``. Raises UnknownTask, with the nearest name.
    """
    asked = (named or settings.app is not None) and task not in BUILT_IN
    if not asked and not settings.otel:
        return Registry(), None
    from stowhand.service.loading import load_tasks, wanted_traces

    if not asked:
        return Registry(), wanted_traces(settings)
    loaded = load_tasks(settings)
    loaded.registry.get(task)
    return loaded.registry, loaded.traces


def _read_stdin() -> str:
    """Read at most one byte more than is allowed, which is enough to be refused."""
    return sys.stdin.buffer.read(SIZE_LIMIT + 1).decode("utf-8", "surrogateescape").strip()
