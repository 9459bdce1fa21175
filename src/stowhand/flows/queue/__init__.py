"""A flow on a queue store: PostgreSQL, SQLite, memory. Each step is a job of its own, enqueued by the settlement of the
one before, in the same transaction; so a step cannot end without the next one beginning, and claims, leases,
retries and resets work as for every other job.

What differs from Redis:

* A job that has completed is kept as long as the store's history (Redis: ``key_life`` from its creation); one that has
  not ended or has failed is kept without limit. A store opened by its URL keeps a history of ``key_life``, but at least
  a day. Without a history completed jobs are gone at once, and a flow with parents is refused; a child whose history
  was pruned before its parent gathers counts as failed.
* Positions are counted over all priorities of a queue, each state (waiting, processing, delayed, parked) by itself.
* Idle workers are woken by the store, all those of a flow by one listening connection; ``wait_timeout`` does not count.
* A dead worker's job is taken back when its lease has ended; by whom, and how often, is as with other jobs
  (``max_resets``). Its failure says so in the store's own words.
* A deleted job that runs is not interrupted; its queue loses it when that execution ends, and what that has enqueued
  ends without calling its function. A trace of that stays in the history until it is pruned.
* All attributes of a job, its results included, take at most 1 MiB as JSON text: a step that would make them more fails
  with that reason. What children are given is kept apart where it is long (attributes.py), and may be 32 MiB.
* Lookups end with the job, not before. A value longer than 200 characters is kept as its SHA-256, and found as ever.
* A limiter that several queues name by one ``id`` has one reservoir for all of them (Redis: one line of waiting jobs,
  and a reservoir for each queue).
* A queue is a flow's own: two flows that declare a queue of one name have each their own, with their own workers.
* The reason of a ``DelayError`` is logged, and not kept with the job.
* Ids are plain UUIDs (version 7) in both layouts; a child's is ``<parent>:<child>:<uuid>``. ``layout`` only decides
  whether a worker function is given ``flowName``, ``priority`` and ``correlationId`` besides what it asks for.
* ``stowhand jobs`` shows every step, task ``<flow>/<queue>``; what is retried, canceled or removed there is so here.
"""

from __future__ import annotations

from stowhand.flows.queue.engine import QueueEngine

__all__ = ["QueueEngine"]
