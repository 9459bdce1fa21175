"""A program's flow for the length of one command."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from stowhand.cli.options import settings_of
from stowhand.flows import Flow
from stowhand.observe.traces import Traces
from stowhand.tasks.loading import load_object

T = TypeVar("T")
Doing = Callable[[Flow], Awaitable[T]]

target_argument = click.argument("target", metavar="MODULE:NAME")
limit_option = click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="How many at most; of each queue and state.",
)


def read_flow(target: str, typed: dict[str, Any]) -> Flow:
    """The flow of that name, ``flow`` unless given; log lines go to stderr from here. Raises ConfigurationError.

    Of a command that takes ``--otel``: it makes spans where that is wanted.
    """
    settings = settings_of(typed)
    flow = load_object(target, Flow, default="flow")
    if "otel" in typed and settings.otel:
        flow.trace(Traces())
    return flow


def with_flow(flow: Flow, doing: Doing[T]) -> T:
    """Connect, do one thing, disconnect. Raises StoreUnreachable, SchemaError.

    ``quiet``: workers log the store's warnings, a look does not.
    """

    async def session() -> T:
        try:
            await flow.open(quiet=True)
            return await doing(flow)
        finally:
            await flow.close()

    return asyncio.run(session())
