"""``stowhand enqueue``: enqueue one job from the command line and print its id."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.help import Command
from stowhand.cli.input import ParsedText, with_options
from stowhand.cli.options import completing, otel_option, settings_of, store_options, tasks_option
from stowhand.cli.session import with_store
from stowhand.errors import InvalidJob, StoreError, hint
from stowhand.jobs import limits
from stowhand.jobs.durations import RunTime, parse_duration, parse_run_time
from stowhand.jobs.fields import NEW_JOB_FIELDS, OPTION_FIELDS, Field, Kind, flag_of
from stowhand.jobs.job import Job, KeyMode
from stowhand.jobs.strict_json import MAX_WRITTEN_BYTES
from stowhand.protocols.operator import BUILT_IN_TASKS
from stowhand.protocols.options import parse_word
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
    type=ParsedText(parse_run_time),
    default=RunTime,
    help="2030-01-31T09:00:00Z, or a delay: +5m.",
)


FIELD_OPTIONS = tuple(field for field in (*OPTION_FIELDS, *NEW_JOB_FIELDS) if field.flag)


def _flag(field: Field) -> Callable[[F], F]:
    metavar, kind = _OPTION_TYPES[field.kind]
    return click.option(
        field.name, flag_of(field), type=kind, metavar=metavar, multiple=field.kind is Kind.NAMES, help=field.flag
    )


_OPTION_TYPES: dict[Kind, tuple[str, Any]] = {
    Kind.TEXT: ("TEXT", str),
    Kind.WHOLE: ("N", int),
    Kind.SECONDS: ("DURATION", ParsedText(parse_duration)),
    Kind.NAMES: ("NAME", str),
}


PAYLOAD_HINT = """the arguments of the task are one JSON value, in quotes: stowhand enqueue send '{"to": "ada"}'"""


@click.command(cls=Command, on_extra=PAYLOAD_HINT)
@click.argument("task")
@click.argument("payload", metavar="[JSON]", default="{}")
@when_option
@with_options(*map(_flag, FIELD_OPTIONS))
@click.option(
    "--key-mode",
    metavar="MODE",
    type=ParsedText(lambda text: KeyMode(parse_word(text.replace("-", "_"), KeyMode))),
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
    **option_values: Any,
) -> None:
    """Enqueue a job and print its id.

    TASK is its name. JSON is its payload: {} by default; - reads it from stdin.

    Any task name is accepted, because only workers know the tasks. With --tasks or --app the name and the payload are
    checked, and the task's declarations are the defaults of the options.
    """
    if key_mode is not None and option_values["key"] is None:
        raise click.UsageError("--key-mode needs a key: use --key too")
    settings = settings_of(option_values)
    values = {"run_at": when.run_at, "delay": when.delay, "key_mode": key_mode}
    values |= {field.name: option_values[field.name] for field in FIELD_OPTIONS}
    tasks, traces = _load_tasks(settings, task, is_named=option_values.get("tasks") is not None)
    text = _read_stdin() if payload == "-" else payload
    options = cast("EnqueueOptions", {k: v for k, v in values.items() if v not in (None, ())})
    built_in = task in BUILT_IN_TASKS
    try:
        job = limits.check(tasks.apply_on_enqueue(tasks.new_job_of_text(task, text, options)), built_in=built_in)
    except InvalidJob as error:
        if "JSON is malformed" in str(error):
            raise InvalidJob(f"{error}; {PAYLOAD_HINT}") from None
        raise

    is_checked = built_in or task in tasks

    async def add(store: QueueStore) -> tuple[Job, str]:
        added = await (store.admin.add_built_in(job) if built_in else store.jobs.enqueue(job))
        return added, "" if is_checked or not has_terminal() else await _unknown_task_note(store, task)

    added, note = with_store(settings.store, add, traces)
    click.echo(added.id)
    if note:
        click.echo(note, err=True)


def has_terminal() -> bool:
    """Return whether a person reads the notes. Scripts need none and skip their queries."""
    return sys.stderr.isatty()


async def _unknown_task_note(store: QueueStore, task: str) -> str:
    """Return a note if no running worker has the task: its name may be misspelled."""
    try:
        descriptions = [row.description for row in await store.inspect.workers() if row.is_alive]
    except StoreError:  # for example a login that may only enqueue
        return ""
    known = {name for description in descriptions for name in description.tasks or ()}
    if not descriptions or task in known or any(description.tasks is None for description in descriptions):
        return ""
    return f"note: no running worker has a task {task!r}{hint(task, known) or '; the job waits until one has'}"


def _load_tasks(settings: WorkerSettings, task: str, *, is_named: bool) -> tuple[Registry, Traces | None]:
    """Return the tasks whose declarations apply, and the traces of ``--otel`` or the App.

    Nothing is loaded unless an App or a folder of tasks is named. Raise UnknownTask with the nearest name.
    """
    needs_tasks = (is_named or settings.app is not None) and task not in BUILT_IN_TASKS
    if not needs_tasks and not settings.otel:
        return Registry(), None
    from stowhand.service.task_loader import load_tasks, requested_traces

    if not needs_tasks:
        return Registry(), requested_traces(settings)
    loaded = load_tasks(settings)
    loaded.registry.get(task)
    return loaded.registry, loaded.traces


def _read_stdin() -> str:
    """Read at most one byte more than is allowed, so that a longer payload is refused."""
    return sys.stdin.buffer.read(MAX_WRITTEN_BYTES + 1).decode("utf-8", "surrogateescape").strip()
