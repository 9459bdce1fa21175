"""``stowhand flows monitor``: the jobs in each queue by state, each second, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from stowhand.cli.flow_session import read_flow, target_argument, with_flow
from stowhand.cli.flow_views import look_heading, look_json, look_table
from stowhand.cli.options import log_options
from stowhand.cli.screen import Screen
from stowhand.errors import StoreError
from stowhand.flows import Flow, QueueCount
from stowhand.observe.job_logger import core_logger
from stowhand.service.exit_codes import OK
from stowhand.service.run_all import run_all

LAST_LOOK = 1.0
"""Seconds that a look under way has to end."""


@click.command("monitor")
@target_argument
@click.option("--once", is_flag=True, help="One look, and end.")
@click.option("as_json", "--json", is_flag=True, help="One JSON object per look.")
@log_options
def monitor_flow(target: str, once: bool, as_json: bool, **typed: Any) -> int:
    """Show each second how many jobs each queue has, by state.

    It ends at Ctrl-C. Each look also takes back the jobs of dead workers, as every worker of Stowhand does: where
    none serves the flow, keep this command running.
    """
    flow = read_flow(target, typed)

    async def watch(flow: Flow) -> None:
        screen = _Screen(flow, as_json=as_json)
        monitor = flow.monitor
        if once:
            await monitor.sweep()
            screen.show(await monitor.counts())
            return
        monitor.on_look.append(screen.show)
        monitor.on_trouble.append(screen.complain)
        await run_all(monitor, grace=LAST_LOOK)

    with_flow(flow, watch)
    return OK


class _Screen:
    """Shows each look: in place on a terminal, one after the other elsewhere."""

    def __init__(self, flow: Flow, *, as_json: bool) -> None:
        self._flow = flow
        self._as_json = as_json
        self._screen = Screen()

    def show(self, counts: Sequence[QueueCount]) -> None:
        flow, returned = self._flow, self._flow.monitor.returned
        if self._as_json:
            click.echo(look_json(flow.name, counts, returned))
            return
        heading = look_heading(flow.name, flow.engine.description, returned)
        lines = [heading, "", *look_table(flow.shape, counts)]
        self._screen.show(lines)

    def complain(self, error: StoreError) -> None:
        core_logger().error(f"No look: {error}")
