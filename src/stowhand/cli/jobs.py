"""``stowhand jobs``: look at jobs, and act on them one by one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import click

from stowhand.cli.groups import Group
from stowhand.cli.job_views import answer_json, answer_line, job_json, job_page, job_table
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.job import State
from stowhand.queue_store import Answer, Done, JobFilter, QueueStore
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.setting_values import one_of

MOST = 10_000
"""Jobs in one list, at most; --after gives the next ones."""


def _states(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[State, ...]:
    del ctx, param
    try:
        return tuple(State(one_of(*State)(word)) for word in value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


json_option = click.option("as_json", "--json", is_flag=True, help="One JSON object per line.")
ID = click.IntRange(1, 2**63 - 1)
ids_argument = click.argument("job_ids", metavar="ID...", nargs=-1, required=True, type=ID)


@click.group(cls=Group, name="jobs")
def command() -> None:
    """List, show, retry, cancel and remove jobs."""


@command.command("list")
@click.option("--state", multiple=True, callback=_states, metavar="STATE", help=f"{', '.join(State)}; may be repeated.")
@click.option("--task", help="Only this task.")
@click.option("--queue", help="Only this queue.")
@click.option("--key", help="Only the job with this key.")
@click.option("--after", type=click.IntRange(0, 2**63 - 1), default=0, metavar="ID", help="Only ids above this one.")
@click.option("--limit", type=click.IntRange(1, MOST), default=100, show_default=True, help="How many at most.")
@json_option
@store_options
def list_jobs(
    state: tuple[State, ...],
    task: str | None,
    queue: str | None,
    key: str | None,
    after: int,
    limit: int,
    as_json: bool,
    **typed: Any,
) -> None:
    """List jobs in the order of their ids: live and failed ones, unless --state says otherwise."""
    wanted = JobFilter(states=state, task=task, queue=queue, key=key, after=after, limit=limit)
    jobs = with_store(settings_of(typed).store, lambda store: store.list(wanted))
    if as_json:
        for job in jobs:
            click.echo(job_json(job))
        return
    if not jobs:
        click.echo("No jobs.", err=True)
        return
    job_table(jobs)
    if len(jobs) == limit:
        click.echo(f"There may be more: --after {jobs[-1].id}", err=True)


@command.command("show")
@click.argument("job_id", metavar="ID", type=ID)
@json_option
@store_options
def show_job(job_id: int, as_json: bool, **typed: Any) -> int:
    """Show everything about one job, live or in the history."""
    job = with_store(settings_of(typed).store, lambda store: store.get(job_id))
    if job is None:
        click.echo(f"error: there is no job {job_id}", err=True)
        return FAILURE
    click.echo(job_json(job) if as_json else job_page(job))
    return OK


@command.command("retry")
@ids_argument
@json_option
@store_options
def retry_jobs(job_ids: tuple[int, ...], as_json: bool, **typed: Any) -> int:
    """Make jobs due now, with all their attempts. Not while they run, and not when they completed."""
    return _act(typed, [_by_id(job_id, lambda store: store.retry) for job_id in job_ids], as_json=as_json)


@command.command("cancel")
@ids_argument
@json_option
@store_options
def cancel_jobs(job_ids: tuple[int, ...], as_json: bool, **typed: Any) -> int:
    """Cancel jobs: waiting ones at once, running ones are asked to stop."""
    return _act(typed, [_by_id(job_id, lambda store: store.cancel) for job_id in job_ids], as_json=as_json)


@command.command("remove")
@click.argument("job_ids", metavar="ID...", nargs=-1, type=ID)
@click.option("keys", "--key", multiple=True, help="The job that holds this key; may be repeated.")
@json_option
@store_options
def remove_jobs(job_ids: tuple[int, ...], keys: tuple[str, ...], as_json: bool, **typed: Any) -> int:
    """Delete jobs, by id or by key. A running job is refused by id; by key it loses the key and runs no more."""
    if not job_ids and not keys:
        raise click.UsageError("name the jobs to remove: ID..., or --key KEY")
    actions = [_by_id(job_id, lambda store: store.remove) for job_id in job_ids]
    return _act(typed, actions + [_by_key(key) for key in keys], as_json=as_json)


Action = Callable[[QueueStore], Awaitable[Answer]]


def _by_id(job_id: int, verb: Callable[[QueueStore], Callable[[int], Awaitable[Answer]]]) -> Action:
    return lambda store: verb(store)(job_id)


def _by_key(key: str) -> Action:
    return lambda store: store.remove_key(key)


def _act(typed: dict[str, Any], actions: Sequence[Action], *, as_json: bool) -> int:
    """Print each answer as it comes; 1 if any was refused or is missing."""

    async def all_of_them(store: QueueStore) -> int:
        code = OK
        for action in actions:
            answer = await action(store)
            click.echo(answer_json(answer) if as_json else answer_line(answer))
            if answer.done in (Done.REFUSED, Done.MISSING):
                code = FAILURE
        return code

    return with_store(settings_of(typed).store, all_of_them)
