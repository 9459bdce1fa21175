"""The shop's rows, and the task that works on them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from stowhand import App, resource

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
async def confirm(order_id: int, *, sessions: Sessions = resource(open_database)) -> str:
    async with sessions.begin() as session:
        order = await session.get_one(Order, order_id)
        order.state = "confirmed"
        return f"confirmed {order.item}"
