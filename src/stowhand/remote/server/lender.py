"""Server that lends one store over HTTP, with its background tasks and its stop.

async with running(store, options, events) as server:
    print(server.url)
    await server.until_stopped()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowhand.clock import Clock, SystemClock
from stowhand.errors import ConfigurationError
from stowhand.events import Events, LendingStarted, LendingStopping
from stowhand.http_server import HttpServerOptions, Serving, is_loopback, serving
from stowhand.jobs.lifecycle import MAX_SLACK_SECONDS, slack
from stowhand.protocols.queue_store import AnyStore
from stowhand.remote.server.authenticator import Authenticator, Proxies
from stowhand.remote.server.claims import Claims
from stowhand.remote.server.health import Health
from stowhand.remote.server.http_app import HttpApp
from stowhand.remote.server.proofs import Proofs
from stowhand.remote.server.remote_throughput import RemoteThroughput
from stowhand.remote.server.shared_store import QUEUE, SharedStore
from stowhand.remote.server.store_server import CompleteJob, StoreServer, unchanged
from stowhand.remote.server.tokens import DEFAULT_FILE, TokenFile
from stowhand.remote.server.wake_broadcast import LENDER_NAME, WakeBroadcast
from stowhand.worker.heartbeat_thread import HeartbeatThread
from stowhand.worker.resetter import Resetter, ResetterOptions

if TYPE_CHECKING:
    from stowhand.observe.exposition import LendingMetrics

DEFAULT_PORT = 8470
RESET_INTERVAL_SECONDS = 5.0


class ServerOptions(HttpServerOptions, frozen=True, kw_only=True):
    """Options of a server that lends a store."""

    port: int = DEFAULT_PORT
    tokens: Path = Path(DEFAULT_FILE)
    """Path of the tokens file."""
    tokens_required: bool = False
    """Whether the file was named explicitly. Then it must exist at the start, and every request needs a token."""
    trust_from: tuple[str, ...] = ()
    """Networks of trusted proxies, whose ``X-Forwarded-For`` is used."""
    complete_job: CompleteJob = unchanged
    """Adds to an enqueued job the options that its task declares in the App, if the server has one."""


@asynccontextmanager
async def running(
    store: AnyStore[Any],
    options: ServerOptions,
    events: Events,
    metrics: LendingMetrics | None = None,
    show: Callable[[Health], AbstractContextManager[object]] = nullcontext,
) -> AsyncIterator[Serving]:
    """Lend an open store while the block runs.

    ``show``: returns a context manager that is entered for the same time, and shows the server's health.

    Raises ConfigurationError for invalid options (a public address without tokens, a certificate without its key), and
    if the port is in use.
    """
    clock = SystemClock()
    token_file = TokenFile(options.tokens)
    _check_tokens(options, token_file)
    shared_store, wake_broadcast = SharedStore(store), WakeBroadcast(store, events, clock)
    authenticator = Authenticator(token_file, events, clock, required=options.tokens_required)
    resetter = _resetter(shared_store, events, clock)
    heartbeats = HeartbeatThread("stowhand lending heartbeats", store.heartbeats)
    throughput = RemoteThroughput(heartbeats, clock, events, is_kept=shared_store.kind == QUEUE)
    proofs = Proofs(token_file.secret())
    claims = Claims(shared_store, wake_broadcast, heartbeats, proofs, authenticator.is_valid, throughput.add_claims)
    store_server = StoreServer(
        shared_store, heartbeats, proofs, claims, throughput, options.complete_job, resetter.expect
    )
    health = Health(shared_store, wake_broadcast, events, clock)
    app = HttpApp(store_server, authenticator, health, events, metrics, Proxies(options.trust_from))

    def on_stop() -> None:
        events.emit(LendingStopping(options.grace))
        wake_broadcast.end_polls()

    async with serving(app, options, on_stop) as server:
        wake_broadcast.start()
        resetter_task, throughput_task = server.run(resetter.run()), server.run(throughput.run())
        health.watch(resetter_task)
        events.emit(
            LendingStarted(server.url, shared_store.name, not authenticator.requires_tokens, str(options.tokens))
        )
        try:
            with show(health):
                yield server
        finally:
            await server.close()
            await wake_broadcast.stop()
            resetter.stop()
            throughput_task.cancel()
            await asyncio.wait({resetter_task, throughput_task}, timeout=options.grace)
            await throughput.close()
            await heartbeats.close()


def _resetter(shared_store: SharedStore, events: Events, clock: Clock) -> Resetter:
    """Return the server's own resetter. Workers also reset jobs, but all remote workers may be lost at once."""
    terms = shared_store.store.terms
    options = ResetterOptions(
        name=LENDER_NAME,
        interval=RESET_INTERVAL_SECONDS,
        slack=MAX_SLACK_SECONDS if terms is None else slack(terms.lease),
        prompt=True,
    )
    return Resetter(shared_store.store, options, clock=clock, events=events)


def _check_tokens(options: ServerOptions, token_file: TokenFile) -> None:
    """Raise ConfigurationError if the token file is missing although it was named, or the address is not local."""
    command = f"stowhand tokens make --name NAME --tokens {options.tokens}"
    if options.tokens_required and not token_file.exists():
        raise ConfigurationError(f"{options.tokens}: no tokens yet; make one: {command}")
    if not token_file.exists() and not is_loopback(options.host):
        raise ConfigurationError(
            f"--host {options.host}: without tokens a store is lent only to programs of this machine."
            f" Make a token first: {command}; or omit --host"
        )
