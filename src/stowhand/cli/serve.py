"""``stowhand serve``: lend a store over HTTP to workers that cannot reach its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from stowhand.app.app import App
from stowhand.app.own_store import OwnStore
from stowhand.app.settings.settings import WorkerSettings
from stowhand.app.start import open_installed
from stowhand.cli.help import Command
from stowhand.cli.input import ParsedText
from stowhand.cli.options import http_option, listen_options, settings_of, store_options
from stowhand.cli.session import log_store
from stowhand.cli.tokens import tokens_option, trust_from_option
from stowhand.errors import ConfigurationError
from stowhand.events import Events
from stowhand.jobs.durations import parse_duration
from stowhand.observe.job_logger import core_logger
from stowhand.observe.lending_listener import LendingListener
from stowhand.observe.listener import LogListener
from stowhand.protocols.queue_store import AnyStore
from stowhand.service import exit_codes
from stowhand.service.process import hard_exit, reduce_garbage_collection
from stowhand.service.signals import StopRequests, handle_signals
from stowhand.service.status_server import Answer, StatusServer, health_answer
from stowhand.service.store_opener import store_of
from stowhand.tasks.loader import load_object
from stowhand.tasks.registry import Registry

if TYPE_CHECKING:
    from stowhand.http_server import Serving
    from stowhand.observe.exposition import LendingMetrics
    from stowhand.remote.server.health import Health
    from stowhand.remote.server.lender import ServerOptions

DEFAULT_PORT = 8470
HEALTH_TIMEOUT_SECONDS = 1.5
"""Must be shorter than the two seconds that ``stowhand health`` waits."""


@click.command(cls=Command)
@listen_options(DEFAULT_PORT)
@tokens_option
@trust_from_option
@click.option(
    "--grace",
    default="5s",
    show_default=True,
    type=ParsedText(parse_duration),
    help="Maximum time for requests to finish at a stop.",
)
@http_option
@store_options
def command(
    host: str,
    port: int,
    tokens: tuple[Path, bool],
    tls_cert: Path | None,
    tls_key: Path | None,
    trust_from: tuple[str, ...],
    grace: float,
    **option_values: Any,
) -> int:
    """Lend the store over HTTP to remote workers.

    Remote workers claim jobs, send heartbeats, write logs and settle jobs with a scoped token.

    --app names an App: its store is lent, and its task declarations apply to jobs enqueued here. It may also name a
    TableStore, which is lent instead of the store of -c.

    Without tokens it listens on the loopback only, and every program on this machine can use the store.

    Put a proxy in front of it in untrusted networks: it does not limit slow clients.
    """
    served = _ServedObject()
    settings = settings_of(option_values, served.load)
    options = _options(
        host=host,
        port=port,
        tokens=tokens[0],
        tokens_required=tokens[1],
        tls_cert=tls_cert,
        tls_key=tls_key,
        trust_from=trust_from,
        grace=grace,
        complete_job=served.tasks().complete_foreign_job,
    )
    asyncio.run(_serve(settings, served, options))
    return exit_codes.OK


class _ServedObject:
    """The object that ``--app`` names: a store, or an App."""

    def __init__(self) -> None:
        self.store: AnyStore[Any] | None = None
        self.app: App | None = None

    def load(self, target: str) -> OwnStore:
        """Load the object, and return the store that it names."""
        target_object: Any = load_object(target, object, default="app", or_else="store")
        if isinstance(target_object, App):
            self.app = target_object
            return msgspec.structs.replace(target_object.own_store, app=target)
        if not all(callable(getattr(target_object, name, None)) for name in ("open", "claim", "settle", "heartbeats")):
            raise ConfigurationError(
                f"--app {target}: not a store (its type is {type(target_object).__qualname__}); name a TableStore,"
                " or an App, whose queue is lent"
            )
        self.store = target_object
        return OwnStore(app=target)

    def tasks(self) -> Registry:
        """Return the tasks of the App; none without an App. Raises ConfigurationError."""
        if self.app is None:
            return Registry()
        self.app.discover()
        return self.app.registry


async def _serve(settings: WorkerSettings, served: _ServedObject, options: ServerOptions) -> None:
    from stowhand.remote.server.lender import running

    events = Events()
    LogListener(events)
    LendingListener(events)
    store = served.store
    try:
        if store is None:
            store = await _open(settings)
        else:
            await _open_valid(store, events)
        reduce_garbage_collection()
        show = partial(_serve_health, settings.http)
        async with running(store, options, events, _metrics(), show) as server:
            _stop_at_signals(server)
            await server.until_stopped()
    finally:
        if store is not None:
            await store.close()


@contextmanager
def _serve_health(address: str | None, health: Health) -> Iterator[None]:
    """Answer health requests on a separate port and threads, also while the event loop is blocked."""
    if address is None:
        yield
        return
    loop = asyncio.get_running_loop()

    async def alive() -> tuple[bool, dict[str, Any]]:
        return health.alive()

    def page(
        question: Callable[[], Coroutine[Any, Any, tuple[bool, dict[str, Any]]]], good_status: str, bad_status: str
    ) -> Answer:
        answer = asyncio.run_coroutine_threadsafe(question(), loop)
        try:
            is_healthy, fields = answer.result(HEALTH_TIMEOUT_SECONDS)
        except TimeoutError:
            answer.cancel()
            return health_answer(
                good_status,
                bad_status,
                [f"no answer of the event loop or the store within {HEALTH_TIMEOUT_SECONDS:g} s"],
            )
        return health_answer(good_status, bad_status, [] if is_healthy else [fields["status"]])

    pages = {
        "/healthz": lambda: page(alive, "ok", "stuck"),
        "/readyz": lambda: page(health.ready, "ready", "not ready"),
    }
    server = StatusServer(address, pages)
    core_logger().info(f"Health: {server.url}/healthz, /readyz")
    try:
        yield
    finally:
        server.close()


def _metrics() -> LendingMetrics | None:
    try:
        from stowhand.observe.exposition import LendingMetrics
    except ConfigurationError:
        return None
    return LendingMetrics()


def _stop_at_signals(server: Serving) -> None:
    """Stop at signals. First: requests may finish; second: stop at once; third: exit."""
    loop, stop_requests = asyncio.get_running_loop(), StopRequests()

    def on_signal() -> None:
        if not stop_requests.add():
            return
        if stop_requests.count <= 2:
            loop.call_soon_threadsafe(server.stop)
        else:
            hard_exit(exit_codes.FAILURE)

    handle_signals(on_signal)


async def _open(settings: WorkerSettings) -> AnyStore[Any]:
    connection = settings.store.connection
    if connection.url.startswith(("http://", "https://")):
        raise ConfigurationError(f"{connection.source}: that store is already lent; serve the store itself")
    log_store(connection)
    store = store_of(settings.store)
    try:
        await open_installed(store)
    except BaseException:
        await store.close()
        raise
    return store


async def _open_valid(store: AnyStore[Any], events: Events) -> None:
    """Refuse a table that no worker can serve before a worker requests its rows."""
    await (store.open() if store.enclosing is None else store.enclosing.validate(events))


def _options(**values: Any) -> ServerOptions:
    try:
        from stowhand.remote.server.lender import ServerOptions
    except ImportError as error:
        raise ConfigurationError(f"Lending needs a server: pip install 'stowhand[serve]' ({error})") from error
    return ServerOptions(**values)
