"""``stowhand jobs explain``, ``purge``, and ``retry --failed``: questions about one job, and acts on all of a kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click
import msgspec

from stowhand.app.settings.settings import StoreSettings
from stowhand.cli.job_filter import Wanted
from stowhand.cli.options import json_option, settings_of, store_options
from stowhand.cli.reading import Read, agreed
from stowhand.cli.replies import show_answers, show_one
from stowhand.cli.session import with_store
from stowhand.jobs.durations import parse_duration
from stowhand.observe.safe_text import escape
from stowhand.protocols.matching import PAGE
from stowhand.protocols.operating import Ages, Explanation
from stowhand.protocols.queue_store import Answer, Done, QueueStore
from stowhand.service.exit_codes import FAILURE, OK


def _read_age(text: str) -> float:
    seconds = parse_duration(text)
    if not text.strip()[-1].isalpha():
        # A bare number means seconds elsewhere; a user who deletes by 14 means days.
        raise ValueError(f"{text!r} has no unit; write for example 14d, 12h or 90s")
    return seconds


def age_option(name: str, words: str) -> Callable[[Any], Any]:
    """An option that takes a duration."""
    return click.option(name, type=Read(_read_age), metavar="DURATION", help=words)


@click.command("explain")
@click.argument("job_id", metavar="ID", type=click.IntRange(1, 2**63 - 1))
@json_option
@store_options
def explain_job(job_id: int, as_json: bool, **typed: Any) -> int:
    """Say why a job is not running: every reason, the most important first, and what to do about it."""
    found = with_store(settings_of(typed).store, lambda store: store.inspect.explain(job_id))
    return show_one(found, f"job {job_id}", _reasons_json if as_json else _reasons)


def _reasons_json(found: Explanation) -> str:
    return "\n".join(json.dumps({"id": found.job.id} | msgspec.structs.asdict(reason)) for reason in found.reasons)


def _reasons(found: Explanation) -> str:
    lines = [f"{found.job.id} ({escape(found.job.task)}) is {found.job.state.value}:"]
    for reason in found.reasons:
        lines.append(f"  {escape(reason.what)}")
        if reason.todo:
            lines.append(f"    -> {escape(reason.todo)}")
    return "\n".join(lines)


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


def retry_failed(store: StoreSettings, wanted: Wanted, *, yes: bool, as_json: bool) -> int:
    """Count them, ask, and retry them page by page; a line for each that was not."""
    job_ids = with_store(store, wanted.ids)
    if not job_ids:
        click.echo("No failed jobs.", err=True)
        return OK
    if not yes and not agreed(f"Retry {len(job_ids)} failed job{'' if len(job_ids) == 1 else 's'}{wanted.say()}?"):
        click.echo("Nothing was retried.", err=True)
        return FAILURE
    return with_store(store, lambda store: _retry(store, job_ids, as_json=as_json))


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
                show_answers([await _left(store, job_id)], as_json=as_json)
            elif as_json:
                show_answers([Answer(job_id, Done.DONE)], as_json=True)
    if not as_json:
        click.echo(f"Retried: {done}")
    return OK if done == len(job_ids) else FAILURE
