"""The child of quarantine.py: ``python -m stowhand.service.quarantined`` with an Assignment on its standard input."""

from __future__ import annotations

import asyncio
import os
import sys

import msgspec

from stowhand.observe.logs import configure_logging
from stowhand.service.loading import load_tasks, make_handler
from stowhand.service.process import hard_exit
from stowhand.service.quarantine import Assignment, ChildAnswer, attempt_in_child
from stowhand.stores import open_store


def main() -> None:
    """Run one job, answer, and leave without waiting for threads."""
    assignment = msgspec.json.decode(sys.stdin.buffer.read(), type=Assignment)
    settings = assignment.settings
    configure_logging(settings.log_level, settings.log_format)
    answer = asyncio.run(_attempt(assignment))
    with os.fdopen(assignment.answer_fd, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer))
    hard_exit(0)


async def _attempt(assignment: Assignment) -> ChildAnswer:
    settings = assignment.settings
    store = open_store(settings.store.url, settings.store.options())
    try:
        handler = make_handler(load_tasks(settings), settings, store, assignment.worker)
        await store.open()
        return await attempt_in_child(handler, assignment)
    finally:
        await store.close()


if __name__ == "__main__":
    main()
