"""``stowhand flows``: list the queues and jobs of a program's flow; retry, cancel and pause; monitor and run it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import click

from stowhand.cli.columns import json_line, table
from stowhand.cli.flow_views import (
    JOB_COLUMNS,
    FlowJobDetails,
    Job,
    child_state,
    job_object,
    job_page,
    monitor_heading,
    position_columns,
    queue_columns,
    queue_lines,
    queue_object,
    sum_line,
)
from stowhand.cli.groups import Group
from stowhand.cli.input import ParsedText, confirm_change, read_pair
from stowhand.cli.options import json_option, limit_option, log_options, otel_option, settings_of
from stowhand.cli.replies import show_all, show_answers, show_one
from stowhand.cli.screen import Screen
from stowhand.clock import wall_clock
from stowhand.errors import ConfigurationError
from stowhand.events import WorkerStopped
from stowhand.flows import Flow, Position, QueueCount, Stage
from stowhand.flows.flow import MAX_CHILDREN_LIMIT
from stowhand.flows.monitor import MAX_SEARCHED_JOBS
from stowhand.observe.job_logger import core_logger
from stowhand.observe.safe_text import escape
from stowhand.observe.traces import Traces
from stowhand.service.exit_codes import FAILURE, OK
from stowhand.service.run_all import run_all
from stowhand.tasks.loader import load_object

IDS_PER_PAGE = 10_000
JOBS_PER_CALL = 500
LAST_UPDATE_SECONDS = 1.0
"""Time that a running update has to finish at a stop."""

T = TypeVar("T")

target_argument = click.argument("target", metavar="MODULE:NAME")


@click.group(cls=Group, name="flows")
def command() -> None:
    """Flows: list queues and jobs, retry, cancel, watch, run.

    MODULE:NAME is a Flow of your program; MODULE alone means its `flow`.
    """


@command.command("list")
@target_argument
@json_option
@log_options
def list_queues(target: str, as_json: bool, **option_values: Any) -> None:
    """List the queues, with how many jobs each has.

    Children are listed below their parent. SLOTS counts the slots of the workers that the program creates.
    """
    flow = read_flow(target, option_values)
    counts = with_flow(flow, lambda flow: flow.monitor.counts())
    slots = _slots(flow)
    if as_json:
        for queue in flow.shape.all_queues():
            click.echo(json_line(queue_object(flow.shape, queue, counts, slots[queue.name])))
    else:
        click.echo(
            "\n".join(table(queue_columns(counts, with_declaration=True), queue_lines(flow.shape, counts, slots)))
        )


@command.command("show")
@target_argument
@click.argument("job_id", metavar="JOB_ID")
@click.option("--children", is_flag=True, help="Show each child with all its attributes, instead of a summary.")
@json_option
@log_options
def show_job(target: str, job_id: str, children: bool, as_json: bool, **option_values: Any) -> int:
    """Show a job's state, position, attributes and children.

    For its children it shows counts by state.
    """

    async def read_details(flow: Flow) -> FlowJobDetails | None:
        view = await flow.get_job(job_id)
        (job,) = await flow.get_jobs([job_id], resolve_children=children)
        if view is None or job is None:
            return None
        is_live = not view.state.has_ended and view.state is not Stage.LOST
        position = await _find_position(flow, view.queue, job_id) if is_live and view.queue is not None else None
        paused = {count.queue for count in await flow.monitor.counts() if count.paused}
        counts_by_queue = {} if children else await _count_children(flow, job)
        return FlowJobDetails(
            view, job, position, counts_by_queue, paused=position is not None and position.queue in paused
        )

    return show_one(
        with_flow(read_flow(target, option_values), read_details),
        f"job {escape(job_id)}",
        (lambda details: json_line(job_object(details))) if as_json else job_page,
    )


@command.command("jobs")
@target_argument
@click.option("--queue", help="Only this queue.")
@click.option("--failed", is_flag=True, help="Only failed jobs, with their errors.")
@click.option("--after", metavar="JOB_ID", help="With --failed: only jobs created after this one.")
@click.option(
    "--key",
    type=ParsedText(read_pair),
    metavar="ATTR=VALUE",
    help="Only jobs with this value of a lookup attribute, oldest first.",
)
@limit_option
@json_option
@log_options
def list_jobs(
    target: str,
    queue: str | None,
    failed: bool,
    after: str | None,
    key: tuple[str, str] | None,
    limit: int,
    as_json: bool,
    **option_values: Any,
) -> None:
    """List jobs of the queues, failed jobs, or jobs by a key.

    The jobs of a queue are listed in the order in which it is served: POSITION 1 is next.
    """
    if key is not None and (failed or queue is not None):
        raise click.UsageError("--key finds jobs in every queue and state; omit --queue and --failed")
    if after is not None and not failed:
        raise click.UsageError("--after goes with --failed")
    flow = read_flow(target, option_values)
    if queue is not None:
        flow.shape.find_queue(queue)
    if key is None and not failed:
        positions = with_flow(flow, lambda flow: _list_positions(flow, queue, limit))
        show_all(positions, "No jobs.", position_columns(positions, has_several_queues=queue is None), as_json=as_json)
        return
    more = ""
    if key is not None:
        jobs = with_flow(flow, lambda flow: flow.get_jobs_by_key(*key))
        more = f"These are the first of {len(jobs)}: --limit" if len(jobs) > limit else ""
    else:
        jobs, last = with_flow(flow, lambda flow: _list_failed(flow, queue, after, limit))
        more = f"There may be more: --after {escape(last)}" if last is not None else ""
    show_all(jobs[:limit], "No jobs.", JOB_COLUMNS, as_json=as_json, encode=lambda job: job)
    if more:
        click.echo(more, err=True)


@command.command("retry")
@target_argument
@click.argument("job_ids", metavar="[JOB_ID]...", nargs=-1)
@click.option("--failed", is_flag=True, help="Every failed job, except children.")
@click.option("--queue", help="With --failed: only jobs that failed in this queue, including children.")
@click.option("-y", "--yes", is_flag=True, help="With --failed: do not ask for confirmation.")
@json_option
@log_options
def retry_jobs(
    target: str,
    job_ids: tuple[str, ...],
    failed: bool,
    queue: str | None,
    yes: bool,
    as_json: bool,
    **option_values: Any,
) -> int:
    """Put failed jobs back into the queue where they failed.

    They get all their retries again. --failed shows how many there are, and asks for confirmation.

    Exit code: 0 all jobs are waiting again, 1 a job was refused or is missing, or you did not confirm.
    """
    if failed == bool(job_ids):
        raise click.UsageError("name the jobs: JOB_ID..., or --failed")
    if not failed and (queue is not None or yes):
        raise click.UsageError("--queue and --yes go with --failed")
    flow = read_flow(target, option_values)
    selected_ids: Sequence[str] = job_ids
    if failed:
        if queue is not None:
            flow.shape.find_queue(queue)
        selected_ids = with_flow(flow, lambda flow: _all_failed_ids(flow, queue))
        if not selected_ids:
            click.echo("No failed jobs.", err=True)
            return OK
        location = f" of queue {escape(queue)}" if queue is not None else f" of flow {escape(flow.name)}"
        if not yes and not confirm_change("Retry", len(selected_ids), "failed", location):
            return FAILURE
    return with_flow(flow, lambda flow: _retry(flow, selected_ids, as_json=as_json))


@command.command("cancel")
@target_argument
@click.argument("job_ids", metavar="JOB_ID...", nargs=-1, required=True)
@json_option
@log_options
def cancel_jobs(target: str, job_ids: tuple[str, ...], as_json: bool, **option_values: Any) -> int:
    """Cancel jobs; running ones receive a request to stop.

    Children are not canceled with their parent.

    Exit code: 0 all jobs are canceled or were requested to stop, 1 a job was refused or is missing.
    """

    async def cancel(flow: Flow) -> int:
        return max([show_answers([await flow.cancel_job(job_id)], as_json=as_json) for job_id in job_ids])

    return with_flow(read_flow(target, option_values), cancel)


@command.command("pause")
@target_argument
@click.argument("queue")
@log_options
def pause_queue(target: str, queue: str, **option_values: Any) -> None:
    """Pause a queue: no process claims its jobs until it is resumed.

    Running jobs continue, and new jobs still arrive.
    """
    flow = read_flow(target, option_values)
    changed = with_flow(flow, lambda flow: flow.pause(queue))
    click.echo(f"Queue {escape(queue)} of flow {escape(flow.name)} {'is' if changed else 'was already'} paused.")


@command.command("resume")
@target_argument
@click.argument("queue")
@log_options
def resume_queue(target: str, queue: str, **option_values: Any) -> None:
    """Resume a paused queue: its jobs can be claimed again."""
    flow = read_flow(target, option_values)
    changed = with_flow(flow, lambda flow: flow.resume(queue))
    click.echo(f"Queue {escape(queue)} of flow {escape(flow.name)} {'is resumed' if changed else 'was not paused'}.")


@command.command("monitor")
@target_argument
@click.option("--once", is_flag=True, help="Print once and exit.")
@click.option("as_json", "--json", is_flag=True, help="One JSON object per update.")
@log_options
def monitor_flow(target: str, once: bool, as_json: bool, **option_values: Any) -> None:
    """Show each second how many jobs each queue has, by state.

    Press Ctrl-C to stop. Each update also resets the jobs of lost workers, as every Stowhand worker does. If no worker
    serves the flow, keep this command running.
    """
    flow = read_flow(target, option_values)

    async def watch(flow: Flow) -> None:
        screen, monitor = Screen(), flow.monitor

        def show(counts: Sequence[QueueCount]) -> None:
            if as_json:
                subject = {"flow": flow.name, "at": wall_clock(), "returned": monitor.reset_jobs}
                click.echo(json_line({**subject, "queues": list(counts)}))
                return
            heading = monitor_heading(flow.name, flow.engine.description, monitor.reset_jobs)
            lines = [*queue_lines(flow.shape, counts, Counter()), sum_line(counts)]
            screen.show([heading, "", *table(queue_columns(counts, with_declaration=False), lines)])

        if once:
            await monitor.sweep()
            show(await monitor.counts())
            return
        monitor.on_counts.append(show)
        monitor.on_failed_round.append(lambda error: core_logger().error(f"No update: {error}"))
        await run_all(monitor, grace=LAST_UPDATE_SECONDS)

    with_flow(flow, watch)


@command.command("run")
@target_argument
@otel_option
@log_options
def run_flow(target: str, **option_values: Any) -> int:
    """Start the workers that the program has created.

    They run until a signal. The first Ctrl-C lets running jobs finish, the second returns them to the queue.

    Exit code: 0 stopped, 1 a worker function did not stop, 3 the store cannot be reached.
    """
    from stowhand.service.process import export_last_spans, export_spans_at_exit

    flow = read_flow(target, option_values)
    if not flow.workers:
        raise ConfigurationError(
            f"{target!r} has created no workers; in the module, call flow.create_workers(queue, function)"
        )
    unfinished: list[int] = []
    flow.events.on(WorkerStopped, lambda event: unfinished.append(event.unfinished))
    _log_workers(flow)
    export_spans_at_exit(flow.traces)
    asyncio.run(run_all(flow))
    return export_last_spans(FAILURE if any(unfinished) else OK)


def _slots(flow: Flow) -> Counter[str]:
    """Count the slots of each queue that the program has created."""
    return sum((Counter({worker.queue: worker.count}) for worker in flow.workers), Counter[str]())


def _log_workers(flow: Flow) -> None:
    slots = _slots(flow)
    served = ", ".join(f"{escape(queue)} ({count})" for queue, count in slots.items())
    core_logger().info(f"Flow {escape(flow.name)} at {flow.engine.description}; slots: {served}")
    idle = [queue.name for queue in flow.shape.all_queues() if queue.name not in slots]
    if idle:
        core_logger().info(f"No workers here for: {', '.join(idle)}")


async def _find_position(flow: Flow, queue: str, job_id: str) -> Position | None:
    position, is_complete = await flow.monitor.position_of(queue, job_id)
    if position is None and not is_complete:
        click.echo(
            f"Only the first {MAX_SEARCHED_JOBS} of {queue} were searched; the job may be behind them.", err=True
        )
    return position


async def _count_children(flow: Flow, job: Job) -> dict[str, Counter[str]]:
    """Count a job's children in each parent's queue, by state."""
    children: dict[str, Counter[str]] = {}
    for queue in flow.shape.all_queues():
        names = job.get(f"children:{queue.name}:jobs")
        if queue.is_parent and isinstance(names, list) and names:
            states: Counter[str] = Counter()
            children[queue.name] = states
            for start in range(0, len(names), MAX_CHILDREN_LIMIT):
                page = await flow.get_children(str(job["id"]), queue.name, start=start, limit=MAX_CHILDREN_LIMIT)
                states.update(child_state(child) for child in page)
    return children


async def _list_positions(flow: Flow, queue: str | None, limit: int) -> list[Position]:
    rows: list[Position] = []
    for name in [queue] if queue is not None else [flow_queue.name for flow_queue in flow.shape.all_queues()]:
        rows += await flow.monitor.positions(name, limit)
    return rows


async def _list_failed(flow: Flow, queue: str | None, after: str | None, limit: int) -> tuple[list[Job], str | None]:
    """Return the jobs, and the last id if there may be more."""
    ids = await flow.engine.failed(queue, after=after, limit=limit)
    jobs = [job for job in await flow.get_jobs(ids) if job is not None]
    return jobs, ids[-1] if len(ids) == limit else None


async def _all_failed_ids(flow: Flow, queue: str | None) -> list[str]:
    """Return the ids of failed jobs. Without ``queue``, children are excluded, because most parents have continued."""
    job_ids: list[str] = []
    while True:
        page = await flow.engine.failed(queue, after=job_ids[-1] if job_ids else None, limit=IDS_PER_PAGE)
        job_ids += page
        if len(page) < IDS_PER_PAGE:
            return job_ids if queue is not None else [job_id for job_id in job_ids if job_id.count(":") < 2]


async def _retry(flow: Flow, job_ids: Sequence[str], *, as_json: bool) -> int:
    code = OK
    for start in range(0, len(job_ids), JOBS_PER_CALL):
        answers = await flow.retry_jobs(job_ids[start : start + JOBS_PER_CALL])
        code = max(code, show_answers(answers, as_json=as_json))
    return code


def read_flow(target: str, option_values: dict[str, Any]) -> Flow:
    """Load the flow, start logging to stderr, and trace the flow if ``--otel`` requests it.

    ``target`` is MODULE:NAME; the default name is ``flow``. Raise ConfigurationError.
    """
    settings = settings_of(option_values)
    flow = load_object(target, Flow, default="flow")
    if "otel" in option_values and settings.otel:
        flow.trace(Traces())
    return flow


def with_flow(flow: Flow, operation: Callable[[Flow], Awaitable[T]]) -> T:
    """Connect, run the operation, disconnect. Raise StoreUnreachable or SchemaError.

    The store's warnings are not logged: workers log them.
    """

    async def session() -> T:
        try:
            await flow.open(quiet=True)
            return await operation(flow)
        finally:
            await flow.close()

    return asyncio.run(session())
