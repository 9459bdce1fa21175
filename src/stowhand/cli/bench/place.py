"""Where the measuring is done: beside what is in use, never in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stowhand.app.own_store import ResolvedStore
from stowhand.app.settings.settings import StoreSettings
from stowhand.protocols.store import DAY

SCHEMA = "stowhand_bench"


@contextmanager
def own_place(named: ResolvedStore, *, history: bool, synchronous: str) -> Iterator[StoreSettings]:
    """A schema of its own in that database, or a file of its own in the folder of that file, removed afterwards."""
    kept = DAY if history else None
    if named.scheme != "sqlite":
        yield StoreSettings(connection=named, schema=SCHEMA, history=kept)
        return
    file = Path(named.url.removeprefix("sqlite:///").partition("?")[0]).absolute().with_name(f"{SCHEMA}.db")
    connection = ResolvedStore(f"sqlite:///{file}", named.source)
    try:
        yield StoreSettings(connection=connection, history=kept, synchronous=synchronous)
    finally:
        for suffix in ("", "-wal", "-shm"):
            file.with_name(file.name + suffix).unlink(missing_ok=True)
