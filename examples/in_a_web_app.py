"""A worker inside an ASGI application: it starts and stops with the server, which keeps its signals.

    uvicorn in_a_web_app:web

Any framework will do; this one is written by hand so that nothing needs to be installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from stowhand import App

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

app = App()


@app.task
async def greet(name: str) -> str:
    return f"Hello, {name}"


async def web(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        await live(receive, send)
    elif scope["type"] == "http":
        job = await greet.enqueue(scope["path"].strip("/") or "world")
        await send({"type": "http.response.start", "status": 202, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": f"job {job.id}\n".encode()})


async def live(receive: Receive, send: Send) -> None:
    await receive()
    async with app.run_in_background(concurrency=4):
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await app.close()
    await send({"type": "lifespan.shutdown.complete"})


async def main() -> None:
    """Play the server for one request."""
    events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    server = asyncio.ensure_future(web({"type": "lifespan"}, events.get, sent.put))
    await events.put({"type": "lifespan.startup"})
    print((await sent.get())["type"])
    await web({"type": "http", "path": "/Ada"}, events.get, sent.put)
    print((await sent.get())["status"], (await sent.get())["body"].decode().split()[0])
    await events.put({"type": "lifespan.shutdown"})
    print((await sent.get())["type"])
    await server


if __name__ == "__main__":
    asyncio.run(main())
