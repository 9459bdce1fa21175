"""``stowhand flows``: a program's flow: its queues and their jobs, retry, watch, run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import click

from stowhand.cli.flow_monitor import monitor_flow
from stowhand.cli.flow_retry import retry_jobs
from stowhand.cli.flow_session import limit_option, read_flow, target_argument, with_flow
from stowhand.cli.flow_views import Job, ended_table, job_page, plain_json, position_table, queue_json, queue_table
from stowhand.cli.groups import Group
from stowhand.cli.options import json_option, log_options, otel_option
from stowhand.errors import ConfigurationError
from stowhand.events import WorkerStopped
from stowhand.flows import Flow, Position
from stowhand.observe.job_logger import core_logger
from stowhand.observe.safe_text import escape
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.run_all import run_all

FAR = (10_000, 1_000_000)
"""How many of each queue and state are looked through for one job: first, and where there are more."""


@click.group(cls=Group, name="flows")
def command() -> None:
    """Flows: list queues and jobs, retry, watch, run.

    MODULE:NAME is a Flow of your program; MODULE alone means its `flow`.
    """


@command.command("list")
@target_argument
@json_option
@log_options
def list_queues(target: str, as_json: bool, **typed: Any) -> None:
    """List the queues, with how many jobs each has.

    Children are listed below their parent. SLOTS are those of the workers that the program creates.
    """
    flow = read_flow(target, typed)
    counts = with_flow(flow, lambda flow: flow.monitor.counts())
    slots = _slots(flow)
    if as_json:
        for queue in flow.shape.all_queues():
            click.echo(queue_json(flow.shape, queue, counts, slots[queue.name]))
    else:
        click.echo("\n".join(queue_table(flow.shape, counts, slots)))


@command.command("show")
@target_argument
@click.argument("job_id", metavar="JOB_ID")
@click.option("--children", is_flag=True, help="Each child with all of its own.")
@json_option
@log_options
def show_job(target: str, job_id: str, children: bool, as_json: bool, **typed: Any) -> int:
    """Show everything about one job, and its position."""

    async def look(flow: Flow) -> tuple[Job | None, Position | None]:
        (job,) = await flow.get_jobs([job_id], resolve_children=children)
        return job, None if job is None else await _find(flow, job_id)

    job, position = with_flow(read_flow(target, typed), look)
    if job is None:
        click.echo(f"error: there is no job {escape(job_id)}", err=True)
        return FAILURE
    click.echo(plain_json({"job": job, "stands": position}) if as_json else job_page(job, position))
    return OK


@command.command("jobs")
@target_argument
@click.option("--queue", help="Only this queue.")
@click.option("--failed", is_flag=True, help="Those that have failed, with what the error said.")
@click.option("--after", metavar="JOB_ID", help="With --failed: only those created after this one.")
@click.option("--key", metavar="ATTR=VALUE", help="Those with this value of a lookup attribute, oldest first.")
@limit_option
@json_option
@log_options
def list_jobs(
    target: str,
    queue: str | None,
    failed: bool,
    after: str | None,
    key: str | None,
    limit: int,
    as_json: bool,
    **typed: Any,
) -> None:
    """List the jobs in the queues, those that failed, or jobs by a key.

    The jobs of a queue are listed in the order in which it is served: POSITION 1 is next.
    """
    if key is not None and (failed or queue is not None):
        raise click.UsageError("--key finds jobs wherever they are; leave --queue and --failed out")
    if after is not None and not failed:
        raise click.UsageError("--after goes with --failed")
    looked_up = None if key is None else _pair(key)
    flow = read_flow(target, typed)
    if queue is not None:
        flow.shape.find_queue(queue)
    if looked_up is not None:
        attribute, value = looked_up
        jobs = with_flow(flow, lambda flow: flow.get_jobs_by_key(attribute, value))
        _print_jobs(jobs[:limit], as_json=as_json)
        if len(jobs) > limit:
            click.echo(f"These are the first of {len(jobs)}: --limit", err=True)
    elif failed:
        found, last = with_flow(flow, lambda flow: _failed(flow, queue, after, limit))
        _print_jobs(found, as_json=as_json)
        if last is not None:
            click.echo(f"There may be more: --after {escape(last)}", err=True)
    else:
        _print_positions(with_flow(flow, lambda flow: _positions(flow, queue, limit)), queue, as_json=as_json)


command.add_command(retry_jobs)
command.add_command(monitor_flow)


@command.command("run")
@target_argument
@otel_option
@log_options
def run_flow(target: str, **typed: Any) -> int:
    """Start the workers that the program has created.

    They work until a signal. The first Ctrl-C lets running jobs end, a second one hands them back.

    Exit code: 0 stopped, 1 a worker function could not be ended, 3 the store cannot be reached.
    """
    from stowhand.service.process import finished, hand_over_at_the_end

    flow = read_flow(target, typed)
    if not flow.workers:
        raise ConfigurationError(
            f"{target!r} has created no workers; in the module, say flow.create_workers(queue, function)"
        )
    unfinished: list[int] = []
    flow.events.on(WorkerStopped, lambda event: unfinished.append(event.unfinished))
    _say_what_runs(flow)
    hand_over_at_the_end(flow.traces)
    asyncio.run(run_all(flow))
    return finished(FAILURE if any(unfinished) else OK)


def _slots(flow: Flow) -> Counter[str]:
    """Of each queue, as the program has created them."""
    return sum((Counter({worker.queue: worker.count}) for worker in flow.workers), Counter[str]())


def _say_what_runs(flow: Flow) -> None:
    slots = _slots(flow)
    served = ", ".join(f"{escape(queue)} ({count})" for queue, count in slots.items())
    core_logger().info(f"Flow {escape(flow.name)} at {flow.engine.description}; slots: {served}")
    idle = [queue.name for queue in flow.shape.all_queues() if queue.name not in slots]
    if idle:
        core_logger().info(f"No workers here for: {', '.join(idle)}")


def _pair(text: str) -> tuple[str, str]:
    attribute, equals, value = text.partition("=")
    if not equals or not attribute or not value:
        raise click.UsageError(f"--key {text!r}: write attribute=value, as in userId=1")
    return attribute, value


async def _find(flow: Flow, job_id: str) -> Position | None:
    beyond = []
    for queue in flow.shape.all_queues():
        for limit in FAR:
            positions = await flow.monitor.positions(queue.name, limit)
            found = next((position for position in positions if position.job_id == job_id), None)
            if found is not None:
                return found
            if max(Counter(position.state for position in positions).values(), default=0) < limit:
                break
        else:
            beyond.append(queue.name)
    if beyond:
        click.echo(f"Only the first {FAR[-1]} of {', '.join(beyond)} were looked at: it may be behind them.", err=True)
    return None


async def _positions(flow: Flow, queue: str | None, limit: int) -> list[Position]:
    found: list[Position] = []
    for name in [queue] if queue is not None else [each.name for each in flow.shape.all_queues()]:
        found += await flow.monitor.positions(name, limit)
    return found


async def _failed(flow: Flow, queue: str | None, after: str | None, limit: int) -> tuple[list[Job], str | None]:
    """The jobs, and the last id where there may be more."""
    ids = await flow.engine.failed(queue, after=after, limit=limit)
    jobs = [job for job in await flow.get_jobs(ids) if job is not None]
    return jobs, ids[-1] if len(ids) == limit else None


def _print_positions(positions: Sequence[Position], queue: str | None, *, as_json: bool) -> None:
    if as_json:
        for position in positions:
            click.echo(plain_json(position))
    elif positions:
        click.echo("\n".join(position_table(positions, several=queue is None)))
    else:
        click.echo("No jobs.", err=True)


def _print_jobs(jobs: Sequence[Job], *, as_json: bool) -> None:
    if as_json:
        for job in jobs:
            click.echo(plain_json(job))
    elif jobs:
        click.echo("\n".join(ended_table(jobs)))
    else:
        click.echo("No jobs.", err=True)
