"""The child of quarantine.py: ``python -m stowhand.service.quarantined`` with an Assignment on its standard input."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading

import msgspec

from stowhand.observe.logs import configure_logging
from stowhand.service import exit_codes
from stowhand.service.embedding import traced
from stowhand.service.loading import load_tasks, make_handler
from stowhand.service.process import LAST_WORDS, hard_exit
from stowhand.service.quarantine import Assignment, ChildAnswer, attempt_in_child
from stowhand.stores import open_store


def main() -> None:
    """Run one job, answer, and leave without waiting for threads."""
    assignment = msgspec.json.decode(sys.stdin.buffer.readline(), type=Assignment)
    # What stops a whole service reaches this process too. The worker decides; a function, because programs that a task
    # starts would inherit SIG_IGN.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    threading.Thread(target=_die_with_the_worker, name="stowhand parent", daemon=True).start()
    settings = assignment.settings
    configure_logging(settings.log_level, settings.log_format)
    answer = asyncio.run(_attempt(assignment))
    with os.fdopen(assignment.answer_fd, "wb") as pipe:
        pipe.write(msgspec.json.encode(answer) + b"\n")
    hard_exit(0)


def _die_with_the_worker() -> None:
    """Its job is taken back when the worker dies: nothing may run it here any more."""
    while sys.stdin.buffer.readline():
        pass
    hard_exit(exit_codes.FAILURE)


async def _attempt(assignment: Assignment) -> ChildAnswer:
    settings = assignment.settings
    loaded = load_tasks(settings)
    store = traced(open_store(settings.store.url, settings.store.options()), loaded.traces)
    if loaded.traces is not None:
        LAST_WORDS.append(loaded.traces.flush)
    try:
        handler = make_handler(loaded, settings, store, assignment.worker)
        await store.open()
        return await attempt_in_child(handler, assignment)
    finally:
        await store.close()


if __name__ == "__main__":
    main()
