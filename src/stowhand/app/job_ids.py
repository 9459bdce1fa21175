"""All jobs that a filter describes, however many, as ids to act on.

await store.admin.cancel_jobs(await ids_of(store, JobFilter(task="send", error="no such order")))
"""

from __future__ import annotations

import msgspec

from stowhand.protocols.queue_store import JobFilter, QueueStore

PAGE = 500
"""Jobs read in one call: with their payloads, 500 MiB at most."""


async def ids_of(store: QueueStore, wanted: JobFilter) -> list[int]:
    """Their ids, rising; ``limit``, ``after`` and ``newest_first`` are ignored. Raises what ``list`` raises."""
    found: list[int] = []
    while True:
        after = found[-1] if found else 0
        page = await store.inspect.list(msgspec.structs.replace(wanted, newest_first=False, after=after, limit=PAGE))
        found += [job.id for job in page]
        if len(page) < PAGE:
            return found
