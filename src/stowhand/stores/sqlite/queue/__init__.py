"""The embedded store: one SQLite file, no server, several processes."""

from __future__ import annotations

from stowhand.stores.sqlite.queue.store import SqliteStore

__all__ = ["SqliteStore"]
