"""``stowhand web``: the dashboard, by itself or beside a worker."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stowhand.app.settings.addresses import split_address
from stowhand.app.settings.settings import SETTINGS, WorkerSettings
from stowhand.cli.options import settings_of, store_options
from stowhand.cli.reading import Read
from stowhand.cli.session import log_store
from stowhand.cli.tokens import tokens_option
from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.observe.job_logger import core_logger
from stowhand.observe.listener import LogListener
from stowhand.protocols.queue_store import QueueStore
from stowhand.remote.server.token_file import TokenFile
from stowhand.service.exit_codes import OK
from stowhand.service.opening import store_of
from stowhand.service.signals import handle_signals

if TYPE_CHECKING:
    from stowhand.web.asgi import Asgi

PORT = 8480
GRACE = 1.0
"""Seconds that requests have to end at a stop: pages are quick, and a stream of changes never ends by itself."""


def _prefix(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r} given; write it like /jobs-admin")
    return text.rstrip("/")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free one.")
@click.option(
    "--url-prefix",
    default="",
    type=Read(_prefix),
    metavar="PATH",
    help="Where it stands behind a proxy that passes paths on as they are: /jobs-admin.",
)
@tokens_option
@click.option("--beside", is_flag=True, hidden=True, help="Of a worker: ends with its standard input.")
@store_options
def command(host: str, port: int, url_prefix: str, tokens: tuple[Path, bool], beside: bool, **typed: Any) -> int:
    """Show the dashboard in a browser: every job, queue, task and worker.

    It listens on this machine alone and changes nothing. To have it in an application of yours: stowhand.web.dashboard.
    """
    settings = settings_of(typed)
    if settings.store.connection.scheme == "memory":
        raise ConfigurationError(
            f"{settings.store.connection.source}: its jobs are in the memory of another process; mount the dashboard in"
            " that one: stowhand.web.dashboard(app)"
        )
    if not beside:
        log_store(settings.store.connection)
    asyncio.run(_Command(settings, url_prefix, tokens).run(host, port, beside=beside))
    return OK


class _Command:
    """One run. The store is opened when the first page is asked for, so that one that is away can be told in a page."""

    def __init__(self, settings: WorkerSettings, prefix: str, tokens: tuple[Path, bool]) -> None:
        self._settings = settings
        self._prefix = prefix
        self._tokens = tokens
        self._store: QueueStore | None = None

    async def run(self, host: str, port: int, *, beside: bool) -> None:
        from stowhand.remote.server.http_server import is_loopback, serving

        path, _ = self._tokens
        if not is_loopback(host) and not path.exists():
            raise ConfigurationError(
                f"--host {host}: without tokens the dashboard is for this machine alone. Make one first:"
                f" stowhand tokens make --name NAME --scope read --tokens {path}; or leave out --host"
            )
        try:
            async with serving(self._application(), host, port, GRACE) as server:
                url = f"{server.url}{self._prefix}/"
                if beside:
                    print(url, flush=True)  # noqa: T201  the worker reads it
                    handle_signals(lambda: None)
                    asyncio.get_running_loop().add_reader(0, server.stop)  # nothing is ever sent: it has ended
                else:
                    core_logger().info(f"Dashboard: {url} (Ctrl-C ends it)")
                    loop = asyncio.get_running_loop()
                    handle_signals(lambda: loop.call_soon_threadsafe(server.stop))
                await server.until_stopped()
        finally:
            if self._store is not None:
                await self._store.close()

    def _application(self) -> Asgi:
        from stowhand.remote.server.authenticator import Authenticator
        from stowhand.web.access import Access
        from stowhand.web.asgi import Asgi
        from stowhand.web.board import Board
        from stowhand.web.reading import Reading

        events, (path, required) = Events(), self._tokens
        LogListener(events)
        gate = Authenticator(TokenFile(path), events, SystemClock(), required=required)
        return Asgi(Board(Reading(self._opened), Access(gate)), prefix=self._prefix)

    async def _opened(self) -> QueueStore:
        store = store_of(self._settings.store)
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        self._store = store
        return store


@contextmanager
def dashboard_beside(address: str | None, typed: Mapping[str, Any]) -> Iterator[None]:
    """A dashboard in a process of its own for the length of the block, on the same store.

    ``typed``: the worker's options. Raises ConfigurationError where it could not start, once it has said why.
    """
    if address is None:
        yield
        return
    host, port = split_address(address)
    # By the environment: other users of the machine see a command line, and a URL may hold a password.
    given = {
        option.variables[0]: str(value).lower() if isinstance(value, bool) else str(value)
        for name, option in SETTINGS.items()
        if option.on == "store" and (value := typed.get(name)) is not None
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "stowhand.cli", "web", "--beside", "--host", host, "--port", str(port)],
        env={**os.environ, **given},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # the worker's Ctrl-C is not its own
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = process.stdout.readline().decode().strip()
        if not url:
            raise ConfigurationError(f"--web {address}: the dashboard has not started; what it said stands above")
        core_logger().info(f"Dashboard: {url}")
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(3 * GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
