"""The dashboard as a function of requests: routes, the check of the visitor's right, and pages for errors."""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import cache, partial
from pathlib import Path

import jinja2
import msgspec
from markupsafe import Markup

from stowhand import errors
from stowhand.app.app import App
from stowhand.clock import wall_clock
from stowhand.events import Events, RequestBroken
from stowhand.jobs.durations import away, format_iso_time, format_short_duration, format_span, format_time
from stowhand.jobs.job import State
from stowhand.jobs.task_limits import LimitValues
from stowhand.observe.safe_text import scrub, shorten, summary_line
from stowhand.protocols.queue_store import QueueStore
from stowhand.web import attention, charts, job, jobs, lists, overview
from stowhand.web.access import Access, own_page
from stowhand.web.actions import JOB_ACTIONS, STATES_BY_MATCHING_ACTION, ActionPages, task_options_adder
from stowhand.web.live import LiveStreams
from stowhand.web.reader import Reader
from stowhand.web.request import (
    HTML_CONTENT_TYPE,
    Forbidden,
    InvalidField,
    PageNotFound,
    Reply,
    Request,
    Right,
    View,
    breakable,
    short,
    text,
)

WEB_FOLDER = Path(__file__).parent
"""Folder of the templates and assets."""
CONTENT_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
ASSETS_BY_PATH = {
    f"/assets/{file.name}": (CONTENT_TYPES[file.suffix], file.read_bytes())
    for file in WEB_FOLDER.iterdir()
    if file.suffix in CONTENT_TYPES
}
ASSET_VERSIONS = {path: hashlib.sha256(content).hexdigest()[:20] for path, (_, content) in ASSETS_BY_PATH.items()}
"""Versions in the links to assets, so that browsers may cache the assets for a long time."""
MAX_LISTED_NAMES = 2
"""Maximum number of names in a cell of a table."""
REFRESH_HEADER = ("refresh", "5")
"""Header that reloads a page after five seconds if the store did not answer."""
UNKNOWN_RESULT_HINT = "Go back and check. You can send the form again: nothing is done twice."
UNKNOWN_FORK_HINT = "Go back and check the list of jobs first. If you send the form again, it adds another copy."
Page = Callable[[Request, Reader], Awaitable[View | Reply]]


class Route(msgspec.Struct, frozen=True):
    """The page of a method and path."""

    method: str
    path: str
    page: Page
    required_right: Right = Right.LOOK
    label: str = ""
    """Name in the menu; empty if the page is not in the menu."""


READ_ROUTES: tuple[Route, ...] = (
    Route("GET", "/", overview.show, label="Overview"),
    Route("GET", "/jobs", jobs.show, label="Jobs"),
    Route("GET", "/job", job.show),
    Route("GET", "/job/text", job.show_text, Right.PAYLOADS),
    Route("GET", "/queues", lists.queues, label="Queues"),
    Route("GET", "/tasks", lists.tasks, label="Tasks"),
    Route("GET", "/limits", lists.limits, label="Limits"),
    Route("GET", "/failures", lists.failures, label="Failures"),
    Route("GET", "/workers", lists.workers, label="Workers"),
)
"""Paths are fixed. Names and ids are in the query (``/job?id=7``), where no character has a special meaning."""


ERROR_PAGES: dict[type[Exception], tuple[int, str, str]] = {
    PageNotFound: (404, "Not found", ""),
    Forbidden: (403, "Access denied", ""),
    InvalidField: (400, "Invalid value", "Check the URL, or go back."),
    errors.InvalidJob: (400, "Invalid job", ""),
    errors.SchemaMissing: (503, "No schema is installed", "Run: stowhand migrate"),
    errors.SchemaOutdated: (503, "The schema is older than this program", "Run: stowhand migrate"),
    errors.SchemaTooNew: (503, "The schema is newer than this program", "Upgrade Stowhand where this dashboard runs."),
    errors.SchemaError: (503, "The schema does not suit this program", ""),
    errors.StoreRefused: (502, "The store refused the request", ""),
    errors.StoreTooSlow: (504, "The store took too long", "Filter by one state, or by a shorter period."),
    errors.ConfigurationError: (501, "Not supported by this store", ""),
    errors.StoreError: (503, "The store does not answer", "This page retries every few seconds."),
}
"""Status, title and advice of the page for an error: the first class that matches."""


class Board:
    """One dashboard over one store.

    ``actions``: pages that change jobs; without them, the dashboard only reads. ``routes``: the other pages.
    ``events`` receives bugs.
    """

    def __init__(
        self,
        reader: Reader,
        access: Access | None = None,
        actions: ActionPages | None = None,
        routes: Sequence[Route] = READ_ROUTES,
        events: Events | None = None,
    ) -> None:
        self._events = events or Events()
        self._reader = reader
        self._access = access or Access()
        self._routes = [*routes]
        if actions is not None:
            self._routes.append(Route("POST", "/act", actions.act, Right.ACT))
            self._routes.append(Route("POST", "/act/matching", actions.act_on_matching, Right.ACT))
            self._routes.append(Route("POST", "/fork", actions.fork, Right.ACT))
            self._routes.append(Route("GET", "/limit", actions.show_limit, Right.ACT))
            self._routes.append(Route("POST", "/limit", actions.set_limit, Right.ACT))
            self._routes.append(Route("GET", "/again", actions.show_form, Right.ADD))
            self._routes.append(Route("POST", "/again", actions.run_again, Right.ADD))
        self._live = LiveStreams(self.answer, reader)

    def close(self) -> None:
        """End the open streams, because the server stops."""
        self._live.close()

    async def answer(self, request: Request) -> Reply:
        """Return the reply to any request."""
        try:
            return await self._reply(request)
        except Exception as error:  # noqa: BLE001  boundary: a bug becomes an event and a page with the common headers
            self.report_bug(request.path, error)
            return self._access.protect(request, text(500, "This page has a bug; see the log of this program.\n"))

    def report_bug(self, call: str, error: Exception) -> None:
        """Emit the event of a request that cannot be answered."""
        self._events.emit(RequestBroken(call, "".join(traceback.format_exception(error))))

    async def _reply(self, request: Request) -> Reply:
        admitted, immediate = await self._access.admit(request)
        if isinstance(immediate, View):
            immediate = self._render(admitted, immediate)
        if immediate is None and self._live.is_stream_request(request):
            immediate = await self._live.stream(request)
        return self._access.protect(admitted, immediate or await self._answer(admitted))

    async def _answer(self, request: Request) -> Reply:
        if request.path in ASSETS_BY_PATH:
            return _asset(request)
        routes_by_method = {route.method: route for route in self._routes if route.path == request.path}
        route = routes_by_method.get("GET" if request.method == "HEAD" else request.method)
        if routes_by_method and route is None:
            allowed = ", ".join(routes_by_method)
            return text(405, f"{request.method} is not allowed here; allowed: {allowed}\n", ("allow", allowed))
        try:
            if route is None:
                raise PageNotFound(f"There is no page {request.path} here.")
            if not request.may(route.required_right):
                raise Forbidden(f"This needs the right “{route.required_right.value}”, which you do not have.")
            result = await route.page(request, self._reader)
            if request.method == "POST":
                self._reader.forget_answers()
        except tuple(ERROR_PAGES) as error:
            result = self._error_view(request, error)
        if isinstance(result, Reply):
            return result
        reply = self._render(request, result)
        return reply.with_headers(REFRESH_HEADER) if result.status == 503 and request.method == "GET" else reply

    def _render(self, request: Request, view: View) -> Reply:
        template = _templates().get_template(view.template)
        body = template.render(
            request=request,
            title=view.title,
            menu=[route for route in self._routes if route.label],
            location=self._reader.location,
            now=wall_clock().replace(microsecond=0),
            may={right.value for right in Right if request.may(right) and self._reader.supports(right)},
            own_url=request.same_page_href().removeprefix(request.prefix),
            back=own_page(request.form_value("back")),
            actions=JOB_ACTIONS,
            matching_actions=STATES_BY_MATCHING_ACTION,
            **view.values,
        )
        headers = (("content-type", HTML_CONTENT_TYPE), ("cache-control", "no-store"))
        return Reply(status=view.status, headers=headers, body=body.encode("utf-8", "backslashreplace"))

    def _error_view(self, request: Request, error: Exception) -> View:
        status, title, hint = next(page for kind, page in ERROR_PAGES.items() if isinstance(error, kind))
        is_schema_error = isinstance(error, errors.SchemaError)  # The schema is checked before any change.
        may_quote_rows = isinstance(error, errors.StoreError) and not is_schema_error  # Databases quote rows in errors.
        message = "" if may_quote_rows and not request.may(Right.PAYLOADS) else scrub(str(error))
        if request.method == "POST" and status == 503 and not is_schema_error:
            title = "Result unknown"
            hint = UNKNOWN_FORK_HINT if request.path == "/fork" else UNKNOWN_RESULT_HINT
        elif request.method == "POST" and status != 502:
            title, hint = "Not done", hint if is_schema_error else ""
        since = self._reader.outage_since if status == 503 and not is_schema_error else None
        values = {"message": message, "hint": hint, "since": since}
        return View(template="base.html", title=title, values=values, status=status)


def mounted_board(app_or_store: App | QueueStore, events: Events) -> Board:
    """Return a board over a store or an App. Of an App it reads on read-only connections."""

    async def open_store(store: QueueStore) -> QueueStore:
        await store.open()
        return store

    if not isinstance(app_or_store, App):
        reader = Reader(partial(open_store, app_or_store), events=events)
        return Board(reader, actions=ActionPages(events), events=events)
    reader = Reader(app_or_store.open_to_read, writer=Reader(app_or_store.open), events=events)
    return Board(reader, actions=ActionPages(events, task_options_adder(app_or_store)), events=events)


@cache
def _templates() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(WEB_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "iso_time": format_iso_time,
        "utc_time": format_time,
        "time_element": _time_element,
        "span": format_span,
        "duration": format_short_duration,
        "error_line": _error_line,
        "name": breakable,
        "names": _names,
        "number": "{:,}".format,
        "sparkline": charts.sparkline,
    }
    environment.globals |= {
        "versions": ASSET_VERSIONS,
        "empty_limit": LimitValues(),
        "waiting_states": attention.WAITING_STATES,
        "all_states": [*State],
    }
    environment.tests["overlapping"] = lambda values, others: not set(values).isdisjoint(others)
    return environment


def _error_line(error: str | None, width: int = 160) -> str:
    """Return an error as one line for a list."""
    return shorten(summary_line(error), width) if error else ""


def _names(names: Sequence[str]) -> str:
    text = ", ".join(map(short, names[:MAX_LISTED_NAMES]))
    hidden_count = len(names) - MAX_LISTED_NAMES
    return f"{text}, and {hidden_count} more" if hidden_count > 0 else text


def _time_element(time: datetime | None, now: datetime) -> Markup:
    """Return ``3m 20s ago`` or ``in 5m``, with the exact time in the title and for the script (local time)."""
    if time is None:
        return Markup("–")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        format_iso_time(time), format_time(time), away(time, now)
    )


def _asset(request: Request) -> Reply:
    kind, content = ASSETS_BY_PATH[request.path]
    is_current = request.query_value("v") == ASSET_VERSIONS[request.path]
    cache_control = "public, max-age=31536000, immutable" if is_current else "no-cache"
    return Reply(headers=(("content-type", kind), ("cache-control", cache_control)), body=content)
