"""``stowhand web``: the dashboard, as its own command or beside a worker."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

import click
import msgspec

from stowhand.app.settings.addresses import split_address
from stowhand.app.settings.settings import SETTINGS, StoreSettings, WorkerSettings
from stowhand.cli.help import Command
from stowhand.cli.input import ParsedText
from stowhand.cli.options import listen_options, settings_of, store_options
from stowhand.cli.session import log_store, unopened
from stowhand.cli.tokens import tokens_option, trust_from_option
from stowhand.clock import SystemClock
from stowhand.errors import ConfigurationError, InvalidJob, SchemaError, SchemaMissing, StoreError
from stowhand.events import Events
from stowhand.jobs.job import NewJob
from stowhand.observe.job_logger import core_logger
from stowhand.observe.lending_listener import LendingListener
from stowhand.protocols.queue_store import QueueStore
from stowhand.remote.server.authenticator import Proxies
from stowhand.remote.server.tokens import TokenFile, write_private
from stowhand.service.children import Child, Children, NextStep, Slot
from stowhand.service.exit_codes import OK, USAGE
from stowhand.service.signals import handle_signals
from stowhand.service.store_opener import store_of
from stowhand.service.task_loader import load_app
from stowhand.tasks.program import describe_exit
from stowhand.tasks.registry import Registry

if TYPE_CHECKING:
    from stowhand.web.board import Board
    from stowhand.web.visitors import SignIn, Visitors
DEFAULT_PORT = 8480
GRACE_SECONDS = 1.0
"""Time for requests to finish at a stop. Pages are quick, and a stream of changes would not end by itself."""


def _prefix(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError(f"{text!r}: write it like /jobs-admin")
    return text.rstrip("/")


@click.command(cls=Command)
@listen_options(DEFAULT_PORT)
@click.option(
    "--url-prefix",
    default="",
    type=ParsedText(_prefix),
    metavar="PATH",
    help="Path of the dashboard behind a proxy that passes paths on unchanged: /jobs-admin.",
)
@tokens_option
@click.option("--allow-actions", is_flag=True, help="Let signed-in visitors change and add jobs.")
@click.option("--hide-payloads", is_flag=True, help="Hide payloads, results, keys, errors and logs.")
@click.option("--trust-header", default="", metavar="NAME", help="Header in which your proxy names the visitor.")
@trust_from_option
@click.option(
    "--public-url", default="", metavar="URL", help="URL of the dashboard for browsers: https://jobs.example.com/queue."
)
@click.option("--beside", is_flag=True, hidden=True, help="Of a worker: ends with its standard input.")
@store_options
def command(
    host: str,
    port: int,
    url_prefix: str,
    tls_cert: Path | None,
    tls_key: Path | None,
    beside: bool,
    **option_values: Any,
) -> int:
    """Show the dashboard in a browser.

    It shows every job, serial key, task and worker.

    By default it listens on this machine only and changes nothing. With --allow-actions you sign in with a single-use
    link. With another --host, or where tokens exist, you sign in with a token. To mount it in your application:
    stowhand.web.dashboard.
    """
    access = _AccessOptions.of(option_values, url_prefix)
    settings = settings_of(option_values)
    if settings.store.connection.scheme == "memory":
        raise ConfigurationError(
            f"{settings.store.connection.source}: its jobs are in the memory of another process; mount the dashboard in"
            " that one: stowhand.web.dashboard(app)"
        )
    store_of(settings.store)  # Reports a missing driver or App now. It does not connect.
    if not beside:
        log_store(settings.store.connection)
    address = {"host": host, "port": port, "tls_cert": tls_cert, "tls_key": tls_key}
    asyncio.run(_DashboardServer(settings, access).run(address, beside=beside))
    return OK


class _AccessOptions(msgspec.Struct, frozen=True):
    """The options of access to the dashboard."""

    sign_in_options: SignIn
    tokens: Path
    required: bool
    prefix: str

    @staticmethod
    def of(option_values: dict[str, Any], prefix: str) -> _AccessOptions:
        """Remove the access options from ``option_values`` and return them. Raise ConfigurationError."""
        try:
            from stowhand.web.visitors import SignIn
        except ImportError as error:  # Its text names the extra.
            raise ConfigurationError(str(error)) from error
        path, required = option_values.pop("tokens")
        if required and not path.exists():
            raise ConfigurationError(f"{path}: no tokens yet; make one: {_make_token_command(path)}")
        public_url = option_values.pop("public_url").rstrip("/")
        sign_in_options = SignIn(
            allow_actions=option_values.pop("allow_actions"),
            hide_payloads=option_values.pop("hide_payloads"),
            trust_header=option_values.pop("trust_header"),
            proxies=Proxies(option_values.pop("trust_from")),
            public_url=public_url,
        )
        return _AccessOptions(sign_in_options, path, required, prefix or unquote(urlsplit(public_url).path))

    def check(self, host: str) -> None:
        """Refuse an address that others can reach if nothing identifies them. Raise ConfigurationError."""
        from stowhand.http_server import is_loopback

        if not is_loopback(host) and not self.tokens.exists() and not self.sign_in_options.trust_header:
            raise ConfigurationError(
                f"--host {host}: without tokens the dashboard is for this machine only. Make one first:"
                f" {_make_token_command(self.tokens)}; or let your proxy name the visitor: --trust-header;"
                " or omit --host"
            )

    def visitors(self, events: Events, on_link: Callable[[str], None]) -> Visitors:
        """Return the visitors. ``on_link`` receives the path of a sign-in link if nothing else identifies a visitor."""
        from stowhand.remote.server.authenticator import Authenticator
        from stowhand.web.visitors import SignInLink, Visitors

        clock = SystemClock()
        token_authenticator = Authenticator(TokenFile(self.tokens), events, clock, required=self.required)
        needs_link = (
            self.sign_in_options.allow_actions
            and not token_authenticator.requires_tokens
            and not self.sign_in_options.trust_header
        )
        link = SignInLink(on_link, clock) if needs_link else None
        return Visitors(token_authenticator, self.sign_in_options, link, clock, events)


def _make_token_command(path: Path) -> str:
    return f"stowhand tokens make --name NAME --scope read,payload --tokens {path}"


class _DashboardServer:
    """Serves the dashboard. It opens the store for the first page, so that a page can report an outage."""

    def __init__(self, settings: WorkerSettings, access: _AccessOptions) -> None:
        self._settings = settings
        self._access = access
        self._stores: list[QueueStore] = []
        self._url = ""

    async def run(self, address: dict[str, Any], *, beside: bool) -> None:
        from stowhand.http_server import HttpServerOptions, serving
        from stowhand.web.asgi import Asgi

        self._access.check(address["host"])
        if not beside:  # The worker beside it has checked the schema.
            await self._check_schema()
        events = Events()
        LendingListener(events, name="web")
        visitors = self._access.visitors(events, self._show_link)
        board = self._board(visitors, events, beside=beside)
        application = Asgi(board, prefix=self._access.prefix)
        try:
            async with serving(application, HttpServerOptions(grace=GRACE_SECONDS, **address), board.close) as server:
                url = self._access.sign_in_options.public_url or f"{server.url}{quote(self._access.prefix)}"
                self._url = url
                if beside:
                    print(f"{url}/", flush=True)  # noqa: T201  the worker reads it
                    handle_signals(lambda: None)
                    asyncio.get_running_loop().add_reader(0, server.stop)  # readable only when the worker has exited
                else:
                    core_logger().info(f"Dashboard: {url}/ (Ctrl-C stops it)")
                    loop = asyncio.get_running_loop()
                    handle_signals(lambda: loop.call_soon_threadsafe(server.stop))
                visitors.show_link()
                await server.until_stopped()
        finally:
            for store in self._stores:
                await store.close()

    async def _check_schema(self) -> None:
        """Raise SchemaError if the schema is refused. A store that is unreachable or not installed may appear later."""
        try:
            async with unopened(self._store_settings(read_only=True)) as store:
                await store.open()
        except StoreError as error:
            if isinstance(error, SchemaError) and not isinstance(error, SchemaMissing):
                raise

    def _board(self, visitors: Visitors, events: Events, *, beside: bool) -> Board:
        from stowhand.web.access import Access
        from stowhand.web.actions import ActionPages
        from stowhand.web.board import Board
        from stowhand.web.reader import Reader

        actions = None
        if self._access.sign_in_options.allow_actions:
            actions = ActionPages(events, _declarations(self._settings.app, may_change=beside))
        writer = Reader(lambda: self._open_store(read_only=False))
        reader = Reader(lambda: self._open_store(read_only=True), writer=writer, events=events)
        return Board(reader, Access(visitors), actions, events=events)

    def _show_link(self, path: str) -> None:
        """Print the link to a terminal, or write it to a file that only its owner can read. Never log it."""
        link = f"{self._url}{path}"
        if sys.stderr.isatty():
            click.echo(f"Sign in, once and within ten minutes: {link}", err=True)
            return
        file = self._access.tokens.with_name("dashboard-link")
        write_private(file, f"{link}\n".encode())
        core_logger().info(f"The link to sign in, once and within ten minutes, is in {file}")

    async def _open_store(self, *, read_only: bool) -> QueueStore:
        store = store_of(self._store_settings(read_only=read_only))
        try:
            await store.open()
        except BaseException:
            await store.close()
            raise
        self._stores.append(store)
        return store

    def _store_settings(self, *, read_only: bool) -> StoreSettings:
        """Return the store's settings. Read-only connections cannot write, and their queries have a time limit."""
        options = msgspec.structs.replace(self._settings.store.options, read_only=read_only)
        return msgspec.structs.replace(self._settings.store, options=options)


def _declarations(app: str | None, *, may_change: bool) -> Callable[[NewJob], NewJob]:
    """Return a function that applies the App's declarations to an added job.

    ``may_change``: its files may change, as in ``stowhand dev``.
    """
    if app is None:
        return Registry().complete_foreign_job
    return current_declarations(app) if may_change else _declared(app).complete_foreign_job


def current_declarations(app: str) -> Callable[[NewJob], NewJob]:
    """Return a function that applies the current declarations of the App's files. It raises InvalidJob."""

    def apply(job: NewJob) -> NewJob:
        for name in _own_modules():
            del sys.modules[name]
        importlib.invalidate_caches()
        try:
            registry = _declared(app)
        except ConfigurationError as error:
            raise InvalidJob(str(error)) from error
        return registry.complete_foreign_job(job)

    return apply


def _declared(app: str) -> Registry:
    """Load all tasks of the App. Raises ConfigurationError."""
    loaded = load_app(app)
    loaded.discover()
    return loaded.registry


def _own_modules() -> list[str]:
    """Return the application's modules: files below the current folder outside site-packages."""
    return [
        name
        for name, module in sys.modules.items()
        if (file := getattr(module, "__file__", None)) is not None
        and "site-packages" not in file
        and name.partition(".")[0] not in ("__main__", "stowhand")
        and Path(file).is_relative_to(Path.cwd())
    ]


@contextmanager
def dashboard_beside(
    address: str | None, option_values: Mapping[str, Any], *, allow_actions: bool = False
) -> Iterator[None]:
    """Run a dashboard on the same store in a separate process during the block. Restart it if it dies.

    ``option_values`` has the worker's options. With ``allow_actions`` a terminal shows only the link to sign in.
    Raise ConfigurationError if it cannot start, such as for a port in use or a missing extra.
    """
    if address is None:
        yield
        return
    dashboard = _DashboardProcess(address, allow_actions, environment_of(option_values, "store"))
    thread = threading.Thread(target=dashboard.keep, name="stowhand dashboard", daemon=True)
    thread.start()
    try:
        dashboard.first_start.result()
        yield
    finally:
        dashboard.stop()
        thread.join()


class _DashboardProcess:
    """Keeps a dashboard process running. ``keep`` runs in a thread, other methods in the thread of the block."""

    def __init__(self, address: str, allow_actions: bool, environ: Mapping[str, str]) -> None:
        self.first_start: Future[None] = Future()
        """Done when the first process listens or has died. It has an error if the options were refused."""
        self._address = address
        self._host, self._port = split_address(address)
        self._options = ["--allow-actions"] if allow_actions else []
        self._should_show_link = allow_actions and sys.stderr.isatty()
        self._environ = environ
        self._loop = asyncio.new_event_loop()
        self._children = Children(1, self._start, self._on_end, grace=GRACE_SECONDS)
        self._announcement: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Keep a dashboard running until it is stopped."""
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._children.run())
        finally:
            self._has_started()

    def stop(self) -> None:
        """Stop it, from any thread. Does nothing if it has stopped."""
        with suppress(RuntimeError):  # The loop is closed.
            self._loop.call_soon_threadsafe(self._children.stop)

    async def _start(self, slot: Slot) -> Child:
        address = ["--host", self._host, "--port", str(self._port)]
        program = ["stowhand.cli", "web", "--beside", *address, *self._options]
        child = await Child.start(*program, environ=self._environ, stdout=asyncio.subprocess.PIPE)
        self._announcement = asyncio.create_task(self._announce(child))
        return child

    async def _announce(self, child: Child) -> None:
        assert child.process.stdout is not None
        url = (await child.process.stdout.readline()).decode().strip()
        if not url:
            return
        self._port = urlsplit(url).port or self._port  # With port 0, restarted processes keep the port.
        if self.first_start.done() or not self._should_show_link:
            core_logger().info(f"Dashboard: {url}")
        self._has_started()

    async def _on_end(self, slot: Slot, code: int) -> NextStep:
        assert self._announcement is not None
        await self._announcement
        if code == USAGE and not self.first_start.done():
            message = f"--web {self._address}: the dashboard did not start; see the error above"
            self.first_start.set_exception(ConfigurationError(message))
            return NextStep.NONE
        if not self._children.is_stopping:
            core_logger().error(f"The dashboard {describe_exit(code)}; restarting")
        self._has_started()
        return NextStep.RESTART

    def _has_started(self) -> None:
        if not self.first_start.done():
            self.first_start.set_result(None)


def environment_of(option_values: Mapping[str, Any], *on: str) -> dict[str, str]:
    """Return the environment with these groups of options for a process that is started beside this one.

    A URL may contain a password, and other users could see it on a command line.
    """
    return {
        option.variables[0]: str(value).lower() if isinstance(value, bool) else str(value)
        for name, option in SETTINGS.items()
        if option.on in on and (value := option_values.get(name)) is not None and value != ()
    }
