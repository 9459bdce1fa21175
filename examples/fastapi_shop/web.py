"""The shop: orders by HTTP, a worker in the same process, and the dashboard for those who sign in with the token.

uvicorn web:web
"""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from jobs import Order, app, confirm, open_database
from sqlalchemy.ext.asyncio import AsyncSession
from starlette.middleware.sessions import SessionMiddleware

from stowhand import JobHandle
from stowhand.events import WorkerStopped
from stowhand.web import dashboard


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    async with open_database() as sessions:
        shared = {open_database: sessions}  # the tasks have what the requests have
        async with app.run_in_background(concurrency=4, grace=10, resources=shared) as worker:
            web.state.sessions, web.state.works = sessions, True
            worker.events.on(WorkerStopped, lambda _: setattr(web.state, "works", False))
            yield
        await app.close()


web = FastAPI(lifespan=lifespan)


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]


class InRequest:
    """Enqueues in the transaction of the request, whose session each part of it is given."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def enqueue(self, task: Any, *args: Any, **kwargs: Any) -> JobHandle[Any]:
        return await app.enqueue_in(self._session, task, *args, **kwargs)


@web.post("/orders")
async def place(item: str, session: Session, jobs: Annotated[InRequest, Depends()]) -> dict[str, int]:
    """The order and its job are there together, or neither is."""
    order = Order(item=item)
    session.add(order)
    await session.flush()  # the database gives order.id now
    job = await jobs.enqueue(confirm, order.id)
    if item == "sold out":
        raise HTTPException(409, "There is none left.")
    answer = {"order": order.id, "job": job.id}
    await session.commit()
    return answer


@web.get("/orders/{order_id}")
async def show(order_id: int, session: Session) -> dict[str, str]:
    order = await session.get(Order, order_id)
    if order is None:
        raise HTTPException(404)
    return {"item": order.item, "state": order.state}


@web.get("/healthz")
async def healthz(request: Request, response: Response) -> dict[str, bool]:
    """That it answers shows that the loop moves, which is the worker's as well."""
    works: bool = request.app.state.works
    response.status_code = 200 if works else 503
    return {"works": works}


# Where several processes serve, all of them need the same secret.
web.add_middleware(SessionMiddleware, secret_key=os.environ.get("SHOP_SECRET") or secrets.token_hex())
LOGIN = '<form method="post"><label>Token <input type="password" name="token"></label> <button>Sign in</button></form>'


@web.get("/login")
async def login() -> HTMLResponse:
    return HTMLResponse(LOGIN)


@web.post("/login")
async def sign_in(request: Request) -> RedirectResponse:
    sent = parse_qs((await request.body()).decode()).get("token", [""])  # FastAPI's Form needs python-multipart
    token = os.environ.get("SHOP_TOKEN", "")
    if not token or not secrets.compare_digest(sent[0].encode(), token.encode()):
        raise HTTPException(403, "wrong token")
    request.session["team"] = "ops"
    return RedirectResponse("/jobs-admin/", 303)


def rights(request: Request) -> list[str]:
    return ["look", "payloads", "act"] if request.session.get("team") == "ops" else []


web.mount("/jobs-admin", dashboard(app, rights=rights))
