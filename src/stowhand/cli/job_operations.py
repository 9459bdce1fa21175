"""``stowhand jobs explain``, ``purge``, and ``retry --failed``: questions about one job, and acts on all of a kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import click
import msgspec

from stowhand.app.settings.settings import StoreSettings
from stowhand.cli.job_filter import agreed
from stowhand.cli.job_views import answer_json, answer_line
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.session import with_store
from stowhand.jobs.durations import parse_duration
from stowhand.jobs.job import State
from stowhand.observe.safe_text import escape
from stowhand.protocols.matching import PAGE, ids_of
from stowhand.protocols.operating import Ages, Explanation
from stowhand.protocols.queue_store import Answer, Done, JobFilter, QueueStore
from stowhand.service.exit_codes import FAILURE, OK


def _read_age(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    del ctx, param
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if not value.strip()[-1].isalpha():
        # A bare number means seconds elsewhere; a user who deletes by 14 means days.
        raise click.BadParameter(f"{value!r} has no unit; write for example 14d, 12h or 90s")
    return seconds


def age_option(name: str, words: str) -> Callable[[Any], Any]:
    """An option that takes a duration."""
    return click.option(name, callback=_read_age, metavar="DURATION", help=words)


@click.command("explain")
@click.argument("job_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@json_option
@store_options
def explain_job(job_id: int, as_json: bool, **typed: Any) -> int:
    """Say why a job is not running: every reason, the most important first, and what to do about it."""
    found = with_store(settings_of(typed).store, lambda store: store.inspect.explain(job_id))
    if found is None:
        click.echo(f"error: there is no job {job_id}", err=True)
        return FAILURE
    if as_json:
        for reason in found.reasons:
            click.echo(json.dumps({"id": job_id} | msgspec.structs.asdict(reason)))
    else:
        click.echo("\n".join(_lines(found)))
    return OK


def _lines(found: Explanation) -> list[str]:
    lines = [f"{found.job.id} ({escape(found.job.task)}) is {found.job.state.value}:"]
    for reason in found.reasons:
        lines.append(f"  {escape(reason.what)}")
        if reason.todo:
            lines.append(f"    -> {escape(reason.todo)}")
    return lines


@click.command("purge")
@age_option("--completed", "Completed jobs that ended longer ago than this (14d).")
@age_option("--failed", "Failed jobs that ended longer ago than this.")
@age_option("--canceled", "Canceled jobs that ended longer ago than this.")
@click.option("--dry-run", is_flag=True, help="Delete nothing: only count.")
@json_option
@store_options
def purge_jobs(
    completed: float | None, failed: float | None, canceled: float | None, dry_run: bool, as_json: bool, **typed: Any
) -> None:
    """Delete finished jobs by their age. Those of a state whose age is not given stay.

    It works page by page, beside workers; interrupted, it is simply run again. Workers prune by themselves what
    --history and --failed-retention say; and the task jobs:purge_completed, which every worker has, does this by cron.
    """
    if completed is None and failed is None and canceled is None:
        raise click.UsageError("say which jobs: --completed, --failed or --canceled, each with an age (14d)")
    ages = Ages(completed=completed, failed=failed, canceled=canceled)
    purged = with_store(settings_of(typed).store, lambda store: store.operate.purge(ages, dry_run=dry_run))
    counts = {name: getattr(purged, name) for name in ages.__struct_fields__ if getattr(ages, name) is not None}
    if as_json:
        click.echo(json.dumps({"dry_run": dry_run} | counts))
    else:
        said = ", ".join(f"{number} {name}" for name, number in counts.items())
        click.echo(f"{'Would delete' if dry_run else 'Deleted'}: {said}")


class FailedOnes(msgspec.Struct, frozen=True, kw_only=True):
    """Which failed jobs are meant."""

    task: str | None = None
    queue: str | None = None
    older_than: float | None = None
    """Seconds since they failed."""

    def say(self) -> str:
        """For a question."""
        task = f" of task {escape(self.task)}" if self.task is not None else ""
        return task + (f" in queue {escape(self.queue)}" if self.queue is not None else "")


def retry_failed(store: StoreSettings, wanted: FailedOnes, *, yes: bool, as_json: bool) -> int:
    """Count them, ask, and retry them page by page; a line for each that was not."""
    job_ids = with_store(store, lambda store: _find(store, wanted))
    if not job_ids:
        click.echo("No failed jobs.", err=True)
        return OK
    if not yes and not agreed(f"Retry {len(job_ids)} failed job{'' if len(job_ids) == 1 else 's'}{wanted.say()}?"):
        click.echo("Nothing was retried.", err=True)
        return FAILURE
    return with_store(store, lambda store: _retry(store, job_ids, as_json=as_json))


async def _find(store: QueueStore, wanted: FailedOnes) -> list[int]:
    before = None if wanted.older_than is None else await store.timetable.now() - timedelta(seconds=wanted.older_than)
    return await ids_of(store, JobFilter(states=(State.FAILED,), task=wanted.task, queue=wanted.queue, until=before))


async def _left(store: QueueStore, job_id: int) -> Answer:
    """Why a job was not retried: it was retried or removed while the user was asked."""
    job = await store.jobs.get(job_id)
    if job is None:
        return Answer(job_id, Done.MISSING)
    return Answer(job_id, Done.REFUSED, f"it is {job.state.value} by now")


async def _retry(store: QueueStore, job_ids: Sequence[int], *, as_json: bool) -> int:
    done = 0
    for start in range(0, len(job_ids), PAGE):
        page = job_ids[start : start + PAGE]
        retried = set(await store.admin.retry_failed(page))
        done += len(retried)
        for job_id in page:
            if job_id not in retried:
                answer = await _left(store, job_id)
                click.echo(answer_json(answer) if as_json else answer_line(answer))
            elif as_json:
                click.echo(answer_json(Answer(job_id, Done.DONE)))
    if not as_json:
        click.echo(f"Retried: {done}")
    return OK if done == len(job_ids) else FAILURE
