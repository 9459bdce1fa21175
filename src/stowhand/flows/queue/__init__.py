"""A flow on a queue store: PostgreSQL, SQLite or memory.

Each step is a job, which the settlement of the previous step enqueues in the same transaction. So no step can end
without the next one, and claims, leases, retries and resets work as for other jobs.

Differences from Redis:

* A completed job is kept as long as the store's history (Redis: ``key_life`` from its creation). A job that has not
  ended or has failed is kept without limit. A store opened by its URL keeps a history of ``key_life``, but at least a
  day. Without a history, completed jobs are deleted at once, and a flow with parents is refused. A child whose history
  was pruned before its parent gathers counts as failed.
* Positions count over all priorities of a queue, separately for each state (waiting, processing, delayed, parked).
* The store wakes idle workers, all those of a flow by one listening connection. ``wait_timeout`` has no effect.
* A lost worker's job is reset when its lease has expired, like any other job (``max_resets``). Its failure has the
  text of the store.
* A deleted job that runs is not interrupted. It leaves its queue when its execution ends, and jobs that this execution
  enqueues end without a call of their function. The history contains them until it is pruned.
* All attributes of a job, including its results, take at most 1 MiB as JSON text. A step that would exceed this fails
  with that reason. Long parameters of children are stored separately (attributes.py), and may take 32 MiB.
* Lookups end with the job, not earlier. A value longer than 200 characters is stored as its SHA-256, and is found too.
* A limiter that several queues name by one ``id`` has one reservoir for all of them (Redis: one line of waiting jobs,
  and a reservoir for each queue).
* A queue belongs to one flow: two flows that declare a queue of the same name have separate queues and workers.
* The reason of a ``DelayError`` is logged, and not stored with the job.
* Ids are plain UUIDs (version 7) in both layouts; a child's is ``<parent>:<child>:<uuid>``. ``layout`` only decides
  whether a worker function receives ``flowName``, ``priority`` and ``correlationId`` in addition to its attributes.
* ``stowhand jobs`` shows every step as a job of the task ``<flow>/<queue>``. Its actions apply to the flow too.
"""

from __future__ import annotations

from stowhand.flows.queue.engine import QueueEngine

__all__ = ["QueueEngine"]
