"""A store where one text stands in every place that a user, a handler or a worker can write."""

from __future__ import annotations

import json
import uuid
from typing import Any

from stowhand.jobs.job import NewJob, State
from stowhand.jobs.lifecycle import AttemptOutcome, Settlement
from stowhand.jobs.task_limits import LimitValues, TaskDeclarations, TaskLimits
from stowhand.protocols.attempt import Progress, ProgressKeeper
from stowhand.protocols.operator import WorkerDescription, WorkerList
from stowhand.protocols.store import ClaimRequest


async def plant(store: Any, text: str, *, names: str = "", error: str = "") -> list[int]:
    """Jobs in every state. ``names``: in tasks, serial keys, flags and workers, too; ``error``: instead of the text."""
    task, serial, worker = f"t{names}"[:128], f"q{names}"[:128], f"w{names}"[:128]
    payload = json.dumps({text: [text, {"deep": text}], "plain": text})
    lasting = {"run_at": None, "flags": (f"f{names}"[:128],), "serial": serial}
    ids: list[int] = []

    async def add(**details: Any) -> int:
        options = {"task": task, "payload": payload, "key": f"{text[:200]}-{len(ids)}", **details}
        ids.append((await store.jobs.enqueue(NewJob(**options))).id)
        return ids[-1]

    async def claim() -> Any:
        request = ClaimRequest(worker=worker, token=str(uuid.uuid4()), limit=1, lease=600.0)
        (found,) = await store.claim(request)
        return found.lease

    message = error or f'ValueError: {text}\n  File "{text}"\n{text}'
    for end in (
        Settlement(State.COMPLETED, AttemptOutcome.OK, result=payload),
        Settlement(State.ERRORED, AttemptOutcome.RETRY, 3600.0, message, error_class="builtins.ValueError"),
        Settlement(State.FAILED, AttemptOutcome.FAILED, error=message, error_class="builtins.ValueError"),
    ):
        await add()
        await store.settle([(await claim(), end)])
    await add(max_attempts=1)
    await store.settle([(await claim(), Settlement(State.FAILED, AttemptOutcome.FAILED, error=message))])
    await store.admin.permanently_fail_jobs([await add()], message)
    await store.admin.cancel_jobs([await add()])
    await add()
    lease = await claim()
    beats = store.heartbeats()
    if isinstance(beats, ProgressKeeper):
        await beats.keep_progress([Progress(lease, 0.5, text)], 5.0)
    if isinstance(beats, WorkerList):
        card = WorkerDescription(worker, f"h{names}", 1, "0", (task, f"u{names}"), 4, False, (f"x{names}",))
        limit, own = f"l{names}"[:128], TaskLimits(concurrency=f"l{names}"[:128])
        declared = TaskDeclarations({task: "default"}, {task: own}, {limit: LimitValues(concurrency=9)})
        await beats.worker_seen(card, declared)
    await beats.close()
    await add(**lasting)
    await store.operate.pause_serial(serial)
    await store.operate.pause_task(f"p{names}"[:128])
    return ids


def pages(ids: list[int]) -> list[str]:
    """Every page that shows what was planted."""
    lists = ("/", "/jobs", "/queues", "/tasks", "/tasks?sort=rate", "/limits", "/failures", "/workers")
    states = [f"/jobs?state={state.value}" for state in State]
    one = [f"{page}?id={job_id}" for job_id in ids for page in ("/job", "/again")]
    return [*lists, *states, *one]
