"""Live updates of a page. A browser that requests a page as an event stream receives each region that changes.

A region is a ``<section data-region>`` of the page. All viewers share one query of the job counts a second. A page is
rendered when the counts have changed, and at intervals if they have not, but less often if rendering is slow. Each
rendering is a request like any other, with the viewer's current rights. Nothing is queued: a slow browser gets the
newest state when it has read the previous event.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime

import msgspec

from stowhand.clock import Clock, SystemClock, wall_clock
from stowhand.errors import ConfigurationError, StoreError
from stowhand.jobs.durations import format_iso_time
from stowhand.web.reader import Reader
from stowhand.web.request import Reply, Request, Visitor, text

EVENT_STREAM = "text/event-stream"
MAX_STREAM_SECONDS = 300.0
"""Maximum duration of a stream. The browser then requests the next one, for which the server checks its rights."""
STOP_CHECKS_PER_SECOND = 4
MAX_QUIET_SECONDS = 5.0
"""Interval of renderings while the counts do not change. Proxies close streams that are quiet for too long."""
RENDER_SECONDS_BY_PATH = {"/job": 1.0}
"""Values that replace MAX_QUIET_SECONDS for pages that can change while the counts stay the same."""
PAUSE_FACTOR = 40
"""The pause after a rendering is its duration times this factor times the number of streams, up to a maximum."""
MAX_PAUSE_SECONDS = 10.0
MAX_STREAMS = 200
"""Maximum number of streams of one process."""
MAX_STREAMS_PER_BROWSER = 4
"""Maximum number of streams of a browser, which opens at most six connections to a server. Further windows poll."""
POLL_SECONDS = 5
"""Interval at which a window without a stream polls."""
Browser = tuple[str, str]
"""Address and user agent."""
OUTAGE_REPLY = Reply(status=503, body=b"<h1>The store does not answer</h1>")
_PAGE_STATUSES = (200, 503)
"""Statuses for which a stream continues: 503 means that the store does not answer now."""
_REGION_PATTERN = re.compile(rb'<section id="([^"]+)" data-region.*?</section>', re.DOTALL)
_TIME_TEXT_PATTERN = re.compile(rb">[^<]*</time>")
"""Texts such as ``3s ago``. They are not compared: they change every second, and the page's script updates them."""


class LiveStreams:
    """The streams of one dashboard. ``answer`` returns the dashboard's reply to any request."""

    def __init__(
        self, answer: Callable[[Request], Awaitable[Reply]], reader: Reader, clock: Clock | None = None
    ) -> None:
        self._answer = answer
        self._reader = reader
        self._clock = clock or SystemClock()
        self._stream_count = 0
        self._streams_by_browser: Counter[Browser] = Counter()
        self._is_closed = False

    def close(self) -> None:
        """End all streams, because the server stops."""
        self._is_closed = True

    def is_stream_request(self, request: Request) -> bool:
        """Return whether the request is for the stream of a page. Assets do not change, so they have none."""
        is_page = request.method == "GET" and not request.path.startswith("/assets/")
        return is_page and EVENT_STREAM in request.headers.get("accept", "")

    async def stream(self, request: Request) -> Reply:
        """Return the stream of the page at this URL.

        If there is no page, status 204 stops the browser's requests. 503 if the process has too many streams.
        """
        page = msgspec.structs.replace(request, headers={**request.headers, "accept": "text/html"})
        amounts = await self._amounts()
        reply = await self._answer(page)
        if reply.status not in _PAGE_STATUSES or not isinstance(reply.body, bytes):
            return Reply(status=204)
        if self._stream_count >= MAX_STREAMS:
            return text(503, f"{MAX_STREAMS} live pages are already open; try again later.\n")
        headers = (("content-type", EVENT_STREAM), ("x-accel-buffering", "no"), ("vary", "accept"))
        browser = (request.address or request.peer, request.headers.get("user-agent", ""))
        if self._streams_by_browser[browser] >= MAX_STREAMS_PER_BROWSER:
            poll = f"retry: {POLL_SECONDS * 1000}\nevent: poll\ndata: \n\n".encode()
            return Reply(headers=headers, body=_event(reply, {}, wall_clock()) + poll)
        return Reply(headers=headers, body=self._events(page, reply, amounts, browser))

    async def _events(self, page: Request, reply: Reply, amounts: object, browser: Browser) -> AsyncIterator[bytes]:
        self._stream_count += 1
        self._streams_by_browser[browser] += 1
        try:
            sent_regions: dict[bytes, bytes] = {}
            pause = paused_until = 0.0
            ends_at = self._clock.monotonic() + MAX_STREAM_SECONDS
            while reply.status in _PAGE_STATUSES:
                yield _event(reply, sent_regions, wall_clock())
                render_at = self._clock.monotonic() + max(
                    RENDER_SECONDS_BY_PATH.get(page.path, MAX_QUIET_SECONDS), pause
                )
                while True:
                    if not await self._wait(ends_at):
                        return
                    started_at = self._clock.monotonic()
                    previous_amounts = amounts
                    is_due = started_at >= render_at
                    if is_due or started_at >= paused_until:
                        amounts = await self._amounts()
                    if is_due or amounts != previous_amounts:
                        break
                if amounts is None and self._reader.outage_since:
                    reply = OUTAGE_REPLY  # Rendering the page would wait for the store, and delay this reply.
                else:
                    reply = await self._answer(await _with_current_visitor(page))
                pause = min(
                    (self._clock.monotonic() - started_at) * PAUSE_FACTOR * self._stream_count, MAX_PAUSE_SECONDS
                )
                if not is_due:  # A rendering at the interval does not delay one for changed counts.
                    paused_until = started_at + pause
        finally:
            self._stream_count -= 1
            self._streams_by_browser -= Counter([browser])  # Subtraction drops zero counts.

    async def _wait(self, ends_at: float) -> bool:
        """Wait for a second. Return False if the server stops or the stream has reached its end."""
        for _ in range(STOP_CHECKS_PER_SECOND):
            await self._clock.sleep(1 / STOP_CHECKS_PER_SECOND)
            if self._is_closed or _server_stops():
                return False
        return self._clock.monotonic() < ends_at

    async def _amounts(self) -> object:
        """Return the job counts, which all viewers share for a second; ``None`` if the store does not answer."""
        try:
            return await self._reader.amounts()
        except (StoreError, ConfigurationError):
            return None


async def _with_current_visitor(page: Request) -> Request:
    """Return the request with the viewer's current rights; without any if the application raises an error."""
    if page.read_visitor is None:
        return page
    try:
        return msgspec.structs.replace(page, visitor=await page.read_visitor())
    except Exception:  # noqa: BLE001  boundary: the next request shows the error
        return msgspec.structs.replace(page, visitor=Visitor())


def _event(reply: Reply, sent_regions: dict[bytes, bytes], now: datetime) -> bytes:
    """Return the regions that differ from ``sent_regions``, and the time. Update ``sent_regions``."""
    body = reply.body if isinstance(reply.body, bytes) else b""
    if reply.status == 503:
        return b"event: outage\ndata: " + body.partition(b"<h1>")[2].partition(b"</h1>")[0] + b"\n\n"
    changed = []
    for region in _REGION_PATTERN.finditer(body):
        without_times = _TIME_TEXT_PATTERN.sub(b"", region[0])
        if sent_regions.get(region[1]) != without_times:
            sent_regions[region[1]] = without_times
            changed.append(region[0])
    data = b"".join(b"data: " + line + b"\n" for line in b"".join(changed).splitlines())
    return (data + b"\n" if data else b"") + f"event: now\ndata: {format_iso_time(now)}\n\n".encode()


def _server_stops() -> bool:
    """Return whether a uvicorn server that runs the application is stopping.

    uvicorn waits for open streams without a notification. Its handler of SIGTERM is a method of the server, which has a
    flag.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return bool(getattr(server, "should_exit", False))
