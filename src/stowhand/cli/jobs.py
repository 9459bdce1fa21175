"""``stowhand jobs``: list, explain and change jobs, one by one or many at once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import click
import msgspec

from stowhand.app.answers import JOBS_PER_PAGE, JobsChange, answer_for, answers_of, fail, reschedule, retry_failed
from stowhand.cli.columns import json_line
from stowhand.cli.enqueue import when_option
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText, confirm_change, with_options
from stowhand.cli.job_filter import RequestedFilter, filter_options, take_filter
from stowhand.cli.job_views import FAILURE_COLUMNS, STEP_COLUMNS, job_fields, job_page, list_columns
from stowhand.cli.options import json_option, limit_option, settings_of, store_options
from stowhand.cli.program import as_called
from stowhand.cli.replies import show_all, show_answers, show_one
from stowhand.cli.session import with_store
from stowhand.errors import hint
from stowhand.jobs.durations import RunTime, parse_duration
from stowhand.jobs.failed_attempts import FailedAttempt
from stowhand.jobs.job import Job, State
from stowhand.observe.safe_text import escape
from stowhand.protocols.counts import BoundedCount
from stowhand.protocols.operator import MAX_PURGE_COUNT, Ages, Explanation
from stowhand.protocols.queue_store import Answer, FailureGroups, QueueStore, Reschedule, require_part
from stowhand.protocols.validation import validate_reschedule
from stowhand.protocols.workflows import RecordedStep
from stowhand.service.exit_codes import FAILURE, OK


def _read_id(text: str) -> int:
    if text.isdecimal() and text.isascii() and 0 < int(text) < 2**63:
        return int(text)
    raise ValueError(
        f"{text!r} is not a job id, which is a whole number; to list a task's jobs: stowhand jobs list --task"
        f" {shlex.quote(text)}"
    )


JOB_ID = ParsedText(_read_id)
CANCELABLE_STATES = (State.QUEUED, State.ERRORED, State.PROCESSING)
REMOVABLE_STATES = (State.QUEUED, State.ERRORED, State.FAILED)
RETRYABLE_STATES = (State.FAILED,)
RESCHEDULABLE_STATES = (State.QUEUED, State.ERRORED)
"""States that each verb acts on unless --state names others."""
LISTED_STATES = (State.QUEUED, State.PROCESSING, State.ERRORED, State.FAILED)
FINISHED_STATES = (State.COMPLETED, State.CANCELED)
"""States that a list leaves out unless --state names them."""
JobAction = Callable[[QueueStore, Sequence[int]], Awaitable[Sequence[Answer]]]
"""Function that acts on the jobs with these ids and returns an answer for each."""

selection_options = with_options(
    click.argument("job_ids", metavar="[ID]...", nargs=-1, type=JOB_ID),
    filter_options,
    click.option("is_all", "--all", is_flag=True, help="Every job that the command can change."),
    click.option("-y", "--yes", is_flag=True, help="Do not ask before changing all of them."),
    json_option,
    store_options,
)
"""Options that select jobs by id or by filter. ``_act`` reads them."""


def _read_age(text: str) -> float:
    seconds = parse_duration(text)
    if not text.strip()[-1].isalpha():
        # A bare number means seconds elsewhere; a user who deletes by 14 means days.
        raise ValueError(f"{text!r} has no unit; write for example 14d, 12h or 90s")
    return seconds


def age_option(name: str, help_text: str) -> Callable[[Any], Any]:
    """Return an option that takes a duration."""
    return click.option(name, type=ParsedText(_read_age), metavar="DURATION", help=help_text)


@click.group(cls=Group, name="jobs")
def command() -> None:
    """List, explain and change jobs."""


@command.command("list")
@filter_options
@click.option("--key", help="Only the job with this key.")
@click.option("--newest", is_flag=True, help="List the newest first.")
@click.option(
    "--after",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    metavar="ID",
    help="Only ids above this one; with --newest below it.",
)
@limit_option
@json_option
@store_options
def list_jobs(key: str | None, newest: bool, after: int, limit: int, as_json: bool, **option_values: Any) -> None:
    """List jobs by id: live and failed ones, or those of --state."""
    requested_filter = take_filter(option_values)

    async def find(requested_filter: RequestedFilter, store: QueueStore) -> Sequence[Job]:
        return await store.inspect.list(
            await requested_filter.filter(store, key=key, newest_first=newest, after=after, limit=limit)
        )

    async def find_or_explain(store: QueueStore) -> tuple[Sequence[Job], str]:
        jobs = await find(requested_filter, store)
        if jobs or as_json:
            return jobs, ""
        which = (
            requested_filter.describe() if key is None else f"{requested_filter.describe()} with the key {escape(key)}"
        )
        finished = {}
        if not requested_filter.states:
            for state in FINISHED_STATES:
                finished[state] = len(await find(msgspec.structs.replace(requested_filter, states=(state,)), store))
        task_hint = await _task_hint(store, requested_filter.task)
        sentence = _no_jobs(requested_filter.states or LISTED_STATES, which + (task_hint or "."))
        return jobs, sentence + _also_finished(finished, limit)

    jobs, nothing = with_store(settings_of(option_values).store, find_or_explain)
    show_all(jobs, nothing, list_columns(jobs), as_json=as_json, encode=job_fields)
    if len(jobs) == limit and not as_json:
        click.echo(f"There may be more: --after {jobs[-1].id}", err=True)


async def _task_hint(store: QueueStore, task: str | None) -> str:
    """Return ``; did you mean 'send'?`` if the store does not know this task but knows a similar one."""
    if task is None:
        return ""
    known = [row.name for row in await store.inspect.tasks()]
    return "" if task in known else hint(task, known)


def _no_jobs(states: Sequence[State], which: str) -> str:
    """Return ``No failed or canceled jobs of task send.``; ``which`` is the end of the sentence."""
    if tuple(states) == LISTED_STATES:
        return f"No waiting, running or failed jobs{which}"
    *first, last = states
    return f"No {', '.join(first)} or {last} jobs{which}" if first else f"No {last} jobs{which}"


def _also_finished(finished: Mapping[State, int], limit: int) -> str:
    """Return `` 1 completed (--state completed)``; empty: no job has finished."""
    parts = []
    for state, number in finished.items():
        if number:
            amount = f"{number} or more" if number == limit else str(number)
            parts.append(f"{amount} {state} (--state {state})")
    return f" {', '.join(parts)}" if parts else ""


@command.command("show")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@json_option
@store_options
def show_job(job_id: int, as_json: bool, **option_values: Any) -> int:
    """Show everything about one job, live or in the history.

    It also lists attempts that did not complete.
    """

    async def find(store: QueueStore) -> tuple[Job, Sequence[FailedAttempt]] | None:
        job = await store.jobs.get(job_id)
        return None if job is None else (job, await store.jobs.tries(job_id))

    result = with_store(settings_of(option_values).store, find)

    def show(job_and_attempts: tuple[Job, Sequence[FailedAttempt]]) -> str:
        job, tries = job_and_attempts
        return json_line(job_fields(job) | {"tries": tries}) if as_json else job_page(job, tries)

    return show_one(result, f"job {job_id}", show)


@command.command("failures")
@json_option
@store_options
def list_failures(as_json: bool, **option_values: Any) -> None:
    """Group failed jobs by task and by the class of their last error.

    It reads the newest 10,000 failed jobs. Each group shows its first failure.
    """
    groups = with_store(settings_of(option_values).store, lambda store: _failure_groups(store).failures())
    show_all(groups, "No failed jobs.", FAILURE_COLUMNS, as_json=as_json)


@command.command("retry")
@click.option("--failed", is_flag=True, help="The same as --state failed.")
@selection_options
def retry_jobs(failed: bool, **option_values: Any) -> int:
    """Make jobs due now, with all their attempts. Running and completed jobs are refused.

    Select jobs by id or by options: failed jobs, unless --state names other states.
    """
    if failed:
        option_values["states"] = (*option_values["states"], State.FAILED)
    only_failed = not option_values["job_ids"] and set(option_values["states"]) <= {State.FAILED}
    return _act(option_values, "Retry", RETRYABLE_STATES, retry_failed if only_failed else _retry)


@command.command("cancel")
@selection_options
def cancel_jobs(**option_values: Any) -> int:
    """Cancel jobs; running ones receive a request to stop.

    Select jobs by id or by options.
    """
    return _act(option_values, "Cancel", CANCELABLE_STATES, lambda store, ids: store.admin.cancel_jobs(ids))


@command.command("remove")
@click.option("keys", "--key", multiple=True, help="The job that holds this key; may be repeated.")
@selection_options
def remove_jobs(keys: tuple[str, ...], **option_values: Any) -> int:
    """Delete jobs by id, by key, or by options.

    By id a running job is refused. By key it loses the key and does not run again.
    """
    return _act(option_values, "Remove", REMOVABLE_STATES, lambda store, ids: store.admin.remove_jobs(ids), keys)


@command.command("complete")
@selection_options
def complete_jobs(**option_values: Any) -> int:
    """Complete waiting or failed jobs as if they had run. Running jobs are refused.

    Select jobs by id or by options.
    """
    return _act(
        option_values, "Complete", REMOVABLE_STATES, _with_answers(lambda store, ids: store.admin.complete_jobs(ids))
    )


@command.command("fail")
@click.option("--reason", metavar="TEXT", help='Their last error.  [default: "Manually marked as failed"]')
@selection_options
def fail_jobs(reason: str | None, **option_values: Any) -> int:
    """Fail jobs permanently: they are kept and not retried. Running jobs are refused.

    Select jobs by id or by options.
    """
    return _act(option_values, "Fail", RESCHEDULABLE_STATES, lambda store, ids: fail(store, ids, reason))


@command.command("reschedule")
@when_option
@click.option("--priority", type=int, metavar="N", help="Smaller runs first.")
@click.option("--attempts", type=int, metavar="N", help="Attempts used so far; 0 runs failed jobs again.")
@click.option("--max-attempts", type=int, metavar="N", help="Maximum number of attempts.")
@click.option("--to-queue", metavar="QUEUE", help="Move them to this queue.")
@selection_options
def reschedule_jobs(
    when: RunTime,
    priority: int | None,
    attempts: int | None,
    max_attempts: int | None,
    to_queue: str | None,
    **option_values: Any,
) -> int:
    """Change time, priority, attempts or queue of jobs.

    It changes waiting and failed jobs. Values without an option do not change.

    Select jobs by id or by options.
    """
    change = Reschedule(
        run_at=when.run_at, priority=priority, attempts=attempts, max_attempts=max_attempts, queue=to_queue
    )
    if change == Reschedule() and when.delay is None:
        raise click.UsageError("nothing to change: use --run-at, --priority, --attempts, --max-attempts or --to-queue")
    validate_reschedule(change)
    action = _with_answers(lambda store, ids: reschedule(store, ids, change, when.delay))
    return _act(option_values, "Reschedule", RESCHEDULABLE_STATES, action)


@command.command("unlock")
@click.argument("workers", metavar="WORKER...", nargs=-1, required=True)
@json_option
@store_options
def unlock_workers(workers: tuple[str, ...], as_json: bool, **option_values: Any) -> int:
    """Reset the jobs of lost workers. If a worker is still alive, the results of these jobs are not recorded."""
    reset_jobs = with_store(settings_of(option_values).store, lambda store: store.admin.force_unlock_workers(workers))
    show_answers(map(answer_for, reset_jobs), as_json=as_json)
    if not reset_jobs:
        click.echo(
            as_called("These workers have no jobs. To list running jobs: stowhand jobs list --state processing --json"),
            err=True,
        )
    return OK if reset_jobs else FAILURE


@command.command("explain")
@click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=JOB_ID)
@json_option
@store_options
def explain_jobs(job_ids: tuple[int, ...], as_json: bool, **option_values: Any) -> int:
    """Explain why jobs are not running, and what to do about it.

    Every reason is listed, the most important first.
    """

    async def explain(store: QueueStore) -> list[Explanation | None]:
        return [await store.inspect.explain(job_id) for job_id in job_ids]

    code = OK
    for number, (job_id, explanation) in enumerate(
        zip(job_ids, with_store(settings_of(option_values).store, explain), strict=True)
    ):
        if number and not as_json:
            click.echo()
        code = show_one(explanation, f"job {job_id}", _reasons_json if as_json else _reasons) or code
    return code


@command.command("steps")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@json_option
@store_options
def list_steps(job_id: int, as_json: bool, **option_values: Any) -> int:
    """List the recorded steps of a workflow."""

    async def find(store: QueueStore) -> tuple[Job, Sequence[RecordedStep]] | None:
        workflows = require_part(store, "workflows", store.workflows)
        job = await store.jobs.get(job_id)
        return None if job is None else (job, await workflows.read(job_id))

    result = with_store(settings_of(option_values).store, find)
    if result is None:
        return show_one(result, f"job {job_id}", str)
    job, steps = result
    if not as_json and job.waits_for is not None:
        click.echo(escape(f"{job.id} ({job.task}) waits for {job.waits_for}"))
    show_all(steps, f"Job {job_id} has no recorded steps.", STEP_COLUMNS, as_json=as_json)
    return OK


@command.command("fork")
@click.argument("job_id", metavar="ID", type=JOB_ID)
@click.option("--from", "step", required=True, metavar="STEP", help="The first step that runs again.")
@json_option
@store_options
def fork_job(job_id: int, step: str, as_json: bool, **option_values: Any) -> int:
    """Enqueue a copy of a workflow with its steps before one."""

    async def fork(store: QueueStore) -> Job | None:
        return await require_part(store, "workflows", store.workflows).fork(job_id, step)

    def show(job: Job) -> str:
        return json_line(job_fields(job)) if as_json else str(job.id)

    return show_one(with_store(settings_of(option_values).store, fork), f"job {job_id}", show)


@command.command("purge")
@age_option("--completed", "Completed jobs that finished longer ago than this (14d).")
@age_option("--failed", "Failed jobs that finished longer ago than this.")
@age_option("--canceled", "Canceled jobs that finished longer ago than this.")
@click.option("--dry-run", is_flag=True, help="Only count the jobs; delete nothing.")
@json_option
@store_options
def purge_jobs(
    completed: float | None,
    failed: float | None,
    canceled: float | None,
    dry_run: bool,
    as_json: bool,
    **option_values: Any,
) -> None:
    """Delete finished jobs by age. States without an age option are kept.

    It deletes in small steps while workers run. If it is interrupted, run it again. Workers also delete finished jobs
    by --history and --failed-retention, and the built-in task jobs:purge_completed does so by cron.
    """
    if completed is None and failed is None and canceled is None:
        raise click.UsageError("no age given: use --completed, --failed or --canceled, each with an age (14d)")
    ages = Ages(completed=completed, failed=failed, canceled=canceled)
    purged = with_store(settings_of(option_values).store, lambda store: store.operate.purge(ages, dry_run=dry_run))
    counts = {name: getattr(purged, name) for name in ages.__struct_fields__ if getattr(ages, name) is not None}
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run} | counts))
    else:
        amounts = {
            name: BoundedCount.up_to(MAX_PURGE_COUNT, number) if dry_run else BoundedCount(number)
            for name, number in counts.items()
        }
        text = ", ".join(f"{amount.text} {name}" for name, amount in amounts.items())
        click.echo(f"{'Would delete' if dry_run else 'Deleted'}: {text}")


async def _retry(store: QueueStore, job_ids: Sequence[int]) -> Sequence[Answer]:
    return await store.admin.retry_jobs(job_ids)


def _with_answers(change: JobsChange) -> JobAction:
    """Return an action that answers for each job, from a change that returns the changed jobs."""
    return lambda store, job_ids: answers_of(store, job_ids, change)


def _act(
    option_values: dict[str, Any], verb: str, states: tuple[State, ...], action: JobAction, keys: tuple[str, ...] = ()
) -> int:
    """Act on the named jobs, or on those that the options select once the user has confirmed.

    ``states`` applies if no state was given. ``keys`` names more jobs to remove. It prints an answer for each job in
    order, and returns 1 if a job was refused or is missing.
    """
    job_ids: Sequence[int] = option_values["job_ids"]
    requested_filter, store = take_filter(option_values), settings_of(option_values).store
    has_filter = option_values["is_all"] or requested_filter != RequestedFilter()
    if has_filter == bool(job_ids or keys):
        raise click.UsageError("name the jobs (ID...), or select them (--task, --state, …, --all)")
    if has_filter:
        requested_filter = msgspec.structs.replace(requested_filter, states=requested_filter.states or states)

        async def find(store: QueueStore) -> tuple[Sequence[int], str]:
            job_ids = await requested_filter.ids(store)
            return job_ids, "" if job_ids else await _task_hint(store, requested_filter.task)

        job_ids, task_hint = with_store(store, find)
        if not job_ids:
            click.echo(_no_jobs(requested_filter.states, requested_filter.describe() + (task_hint or ".")), err=True)
            return OK
        if not option_values["yes"] and not confirm_change(
            verb, len(job_ids), ", ".join(requested_filter.states), requested_filter.describe()
        ):
            return FAILURE
    return with_store(store, lambda store: _act_on(store, action, job_ids, keys, as_json=option_values["as_json"]))


async def _act_on(
    store: QueueStore, action: JobAction, job_ids: Sequence[int], keys: tuple[str, ...], *, as_json: bool
) -> int:
    code = OK
    for start in range(0, len(job_ids), JOBS_PER_PAGE):
        page = job_ids[start : start + JOBS_PER_PAGE]
        by_id = {answer.job_id: answer for answer in await action(store, page)}
        code = max(code, show_answers([by_id[job_id] for job_id in page], as_json=as_json))
    return max(code, show_answers([await store.admin.remove_key(key) for key in keys], as_json=as_json))


def _reasons_json(explanation: Explanation) -> str:
    rows = (
        {"id": explanation.job.id, "code": reason.code, "what": reason.text, "todo": reason.advice}
        for reason in explanation.reasons
    )
    return "\n".join(map(json.dumps, rows))


def _reasons(explanation: Explanation) -> str:
    lines = [f"{explanation.job.id} ({escape(explanation.job.task)}) is {explanation.job.state.value}:"]
    for reason in explanation.reasons:
        lines.append(f"  {escape(reason.text)}")
        if reason.advice:
            lines.append(f"    -> {escape(as_called(reason.advice))}")
    return "\n".join(lines)


def _failure_groups(store: QueueStore) -> FailureGroups:
    """Return the part of the store that groups failed jobs. Raise ConfigurationError if there is none."""
    return store.jobs if isinstance(store.jobs, FailureGroups) else store.inspect
