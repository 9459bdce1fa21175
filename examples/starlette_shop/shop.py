"""The shop with Starlette: orders by HTTP, a worker in the same process, and the dashboard for whoever has the token.

uvicorn shop:web
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from stowhand import App, resource
from stowhand.events import WorkerStopped
from stowhand.web import dashboard

URL = os.environ.get("DATABASE_URL", "sqlite:///shop.db")
DRIVERS = {"postgresql": "postgresql+asyncpg", "sqlite": "sqlite+aiosqlite"}
Sessions = async_sessionmaker[AsyncSession]

app = App(URL)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    state: Mapped[str] = mapped_column(default="new")


@asynccontextmanager
async def open_database() -> AsyncIterator[Sessions]:
    """Opened once in a process: for its requests, and for its tasks."""
    scheme, rest = URL.split(":", 1)
    engine = create_async_engine(f"{DRIVERS[scheme]}:{rest}")
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield async_sessionmaker(engine)
    await engine.dispose()


@app.task
async def confirm(order_id: int, *, sessions: Sessions = resource(open_database)) -> None:
    async with sessions.begin() as session:
        (await session.get_one(Order, order_id)).state = "confirmed"


@asynccontextmanager
async def lifespan(web: Starlette) -> AsyncIterator[None]:
    async with open_database() as sessions:
        shared = {open_database: sessions}  # the tasks have what the requests have
        async with app.run_in_background(concurrency=4, grace=10, resources=shared) as worker:
            web.state.sessions, web.state.works = sessions, True
            worker.events.on(WorkerStopped, lambda _: setattr(web.state, "works", False))
            yield
        await app.close()


async def place(request: Request) -> Response:
    """The order and its job are there together, or neither is."""
    if not (item := request.query_params.get("item")):
        raise HTTPException(422, "Which item? POST /orders?item=…")
    async with request.app.state.sessions.begin() as session:  # commits at the end of the block
        order = Order(item=item)
        session.add(order)
        await session.flush()  # the database gives order.id now
        job = await confirm.enqueue_in(session, order.id)
        if item == "sold out":
            raise HTTPException(409, "There is none left.")
        answer = {"order": order.id, "job": job.id}
    return JSONResponse(answer)


async def show(request: Request) -> Response:
    async with request.app.state.sessions() as session:
        order = await session.get(Order, request.path_params["order_id"])
    if order is None:
        raise HTTPException(404)
    return JSONResponse({"item": order.item, "state": order.state})


async def healthz(request: Request) -> Response:
    """That it answers shows that the loop moves, which is the worker's as well."""
    works: bool = request.app.state.works
    return JSONResponse({"works": works}, 200 if works else 503)


def rights(request: Request) -> list[str]:
    token = os.environ.get("SHOP_TOKEN", "")
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    return ["look", "payloads", "act"] if token and secrets.compare_digest(given.encode(), token.encode()) else []


routes = [
    Route("/orders", place, methods=["POST"]),
    Route("/orders/{order_id:int}", show),
    Route("/healthz", healthz),
    Mount("/jobs-admin", dashboard(app, rights=rights)),
]
web = Starlette(routes=routes, lifespan=lifespan)
