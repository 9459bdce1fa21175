"""Each connection on a thread of its own, so that no loop waits for a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from stowhand.stores.database.sqlite_connection import SqliteConnection

T = TypeVar("T")


class OwnThreads:
    """Made when they are first needed; what is asked of one connection happens in the order asked."""

    def __init__(self) -> None:
        self._threads: dict[SqliteConnection[Any], ThreadPoolExecutor] = {}
        self._pid = os.getpid()

    async def run(self, connection: SqliteConnection[Any], call: Callable[[], T]) -> T:
        """Do it on the thread of this connection."""
        if self._pid != os.getpid():
            # Threads do not survive a fork.
            self._threads, self._pid = {}, os.getpid()
        thread = self._threads.get(connection)
        if thread is None:
            thread = self._threads[connection] = ThreadPoolExecutor(1, thread_name_prefix="stowhand-sqlite")
        return await asyncio.get_running_loop().run_in_executor(thread, call)

    async def close(self, *connections: SqliteConnection[Any]) -> None:
        """Close these connections, and let every thread go."""
        for connection in connections:
            await self.run(connection, connection.close)
        for thread in self._threads.values():
            thread.shutdown(wait=False)
        self._threads.clear()
