"""``stowhand flows retry``: failed jobs once more, by id, or all of them after a question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stowhand.cli.flow_session import read_flow, target_argument, with_flow
from stowhand.cli.job_views import answer_json, answer_line
from stowhand.cli.options import json_option, log_options
from stowhand.flows import Flow
from stowhand.observe.safe_text import escape
from stowhand.protocols.queue_store import Answer, Done
from stowhand.service.exit_codes import FAILURE, OK

PAGE = 10_000
BATCH = 500
"""Jobs in one call."""


@click.command("retry")
@target_argument
@click.argument("job_ids", metavar="[JOB_ID]...", nargs=-1)
@click.option("--failed", is_flag=True, help="Every job that has failed, children apart.")
@click.option("--queue", help="With --failed: only those that failed in this queue, one of children too.")
@click.option("-y", "--yes", is_flag=True, help="With --failed: do not ask.")
@json_option
@log_options
def retry_jobs(
    target: str, job_ids: tuple[str, ...], failed: bool, queue: str | None, yes: bool, as_json: bool, **typed: Any
) -> int:
    """Put failed jobs back into the queue where they failed.

    They have all their retries again. --failed says how many there are, and asks.

    Exit code: 0 all of them are waiting again, 1 one was refused or is missing, or the question was denied.
    """
    if failed == bool(job_ids):
        raise click.UsageError("name the jobs: JOB_ID..., or --failed")
    if not failed and (queue is not None or yes):
        raise click.UsageError("--queue and --yes go with --failed")
    flow = read_flow(target, typed)
    wanted: Sequence[str] = job_ids
    if failed:
        if queue is not None:
            flow.shape.find_queue(queue)
        wanted = with_flow(flow, lambda flow: _all_failed(flow, queue))
        if not wanted:
            click.echo("No failed jobs.", err=True)
            return OK
        if not yes and not _agreed(flow, queue, len(wanted)):
            click.echo("Nothing was retried.", err=True)
            return FAILURE
    return with_flow(flow, lambda flow: _retry(flow, wanted, as_json=as_json))


def _agreed(flow: Flow, queue: str | None, count: int) -> bool:
    """Outside of any session: no connection waits for the user."""
    where = f"queue {escape(queue)}" if queue is not None else f"flow {escape(flow.name)}"
    try:
        return click.confirm(f"Retry {count} failed job{'' if count == 1 else 's'} of {where}?", err=True)
    except click.Abort:
        click.echo("", err=True)
        return False


async def _all_failed(flow: Flow, queue: str | None) -> list[str]:
    """Of all queues only those without a parent: most parents have gone on, and a child with its parent."""
    found: list[str] = []
    while True:
        page = await flow.engine.failed(queue, after=found[-1] if found else None, limit=PAGE)
        found += page
        if len(page) < PAGE:
            return found if queue is not None else [job_id for job_id in found if job_id.count(":") < 2]


async def _retry(flow: Flow, job_ids: Sequence[str], *, as_json: bool) -> int:
    """Print each answer; 1 if any was refused or is missing."""
    code = OK
    for start in range(0, len(job_ids), BATCH):
        for answer in await flow.retry_jobs(job_ids[start : start + BATCH]):
            code = FAILURE if answer.done in (Done.REFUSED, Done.MISSING) else code
            _print(answer, as_json=as_json)
    return code


def _print(answer: Answer, *, as_json: bool) -> None:
    click.echo(answer_json(answer) if as_json else answer_line(answer))
