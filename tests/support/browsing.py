"""Tests as programs of a browser: one browser for a test process, a context of its own for each test.

Test, browser and server share one event loop, which stands still between tests. A context notes what no page may do: an
error in the console, a request to another host.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import uvicorn
from playwright.async_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Playwright,
    Request,
    async_playwright,
    expect,
)
from starlette.types import ASGIApp

from tests.support import browsers

T = TypeVar("T")
WAIT = 60_000
"""Milliseconds that anything may take on a slow machine."""
HOSTS = ("127.0.0.1", "localhost")
RULES = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


class Chromium:
    """A running browser, and the loop on which it is spoken to."""

    def __init__(self, program: browsers.Browser) -> None:
        self._program = program
        self._runner = asyncio.Runner()
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None

    def run(self, steps: Coroutine[Any, Any, T], timeout: float = 100) -> T:
        """Carry out on the loop."""
        return self._runner.run(asyncio.wait_for(steps, timeout))

    @contextmanager
    def entered(self, scope: AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter and leave it on the loop: for fixtures."""
        thing = self.run(scope.__aenter__())
        try:
            yield thing
        finally:
            self.run(scope.__aexit__(None, None, None))

    async def start(self) -> None:
        """Start the browser; loud if it does not."""
        expect.set_options(timeout=WAIT)
        self._playwright = await async_playwright().start()
        self._browser = await self._playwright.chromium.launch(
            executable_path=self._program.program,
            args=["--no-sandbox"],
            env={**os.environ, **self._program.environment},
        )

    @asynccontextmanager
    async def context(self, **options: Any) -> AsyncIterator[BrowserContext]:
        """A visitor: no cookie, nothing remembered. Fails at its end for what its pages may not do."""
        assert self._browser is not None, "the browser has not been started"
        context = await self._browser.new_context(**{"timezone_id": "Europe/Vienna", "locale": "en-GB"} | options)
        context.set_default_timeout(WAIT)
        wrong: list[str] = []
        context.on("console", lambda message: wrong.extend(_complaint(message)))
        context.on("weberror", lambda error: wrong.append(f"uncaught: {error.error}"))
        context.on("request", lambda request: wrong.extend(_foreign(request)))
        try:
            yield context
        finally:
            await context.close()
        assert not wrong, "\n".join(wrong)

    async def stop(self) -> None:
        """End the browser, and what drives it."""
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()

    def close(self) -> None:
        """Stop, and give the loop back."""
        try:
            self.run(self.stop())
        finally:
            self._runner.close()


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[str]:
    """Its URL, without a slash at the end. Without uvicorn's loop, which looks ten times a second whether to stop."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as door:
        door.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=5)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([door])
        try:
            yield f"http://127.0.0.1:{door.getsockname()[1]}"
        finally:
            await server.shutdown([door])


async def wear(page: Page, theme: Literal["light", "dark"]) -> None:
    """As somebody's system says; until it is drawn. On a busy machine a row had for a moment the colours of both."""
    await page.emulate_media(color_scheme=theme)
    await page.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


async def barriers(page: Page) -> list[str]:
    """What axe-core finds on the page as it is now: a line for each, with the places."""
    if await page.evaluate("typeof axe") == "undefined":
        await page.evaluate(browsers.axe())
    rows = await page.evaluate(
        """tags => axe.run({runOnly: {type: "tag", values: tags}, resultTypes: ["violations"]})
        .then(found => found.violations)""",
        list(RULES),
    )
    return [f"{one['id']}: {one['help']}: {_places(one['nodes'])}" for one in rows]


async def overflow(page: Page) -> list[str]:
    """Elements that make the page wider than its window."""
    rows: list[str] = await page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
        [...document.querySelectorAll("body *")].filter(one => one.getBoundingClientRect().right > innerWidth + 1)
        .map(one => `${one.tagName}.${one.className}#${one.id}`)"""
    )
    return rows


def _places(nodes: list[dict[str, Any]]) -> str:
    return "; ".join(f"{node['target']} {node['failureSummary']}" for node in nodes)


def _complaint(message: ConsoleMessage) -> list[str]:
    return [f"console: {message.text}"] if message.type in ("error", "warning") else []


def _foreign(request: Request) -> list[str]:
    host = urlsplit(request.url).hostname
    return [f"another host: {request.url}"] if host is not None and host not in HOSTS else []
