"""A flow in Redis or Valkey: each job is a hash, each queue some lists, each transition one script.

* A job is kept for the flow's ``key_life`` from its end. In the priority layout nothing of it has a time to live before
  that; in the classic layout it has one from its creation, as the original writes it, and the sweep renews what has not
  ended (so there it is kept for half of the ``key_life`` at least). What bounds memory where nobody serves a queue is
  ``max_length``.
* A child's id is ``<parent>:<child>:<uuid>`` for people, in both layouts; in the classic layout only the uuid stands in
  its queue's lists.
* ``layout`` decides, besides the keys, whether a worker function is given ``flowName``, ``priority`` and
  ``correlationId`` besides what it asks for.
* A key of somebody else's where a queue, a child or a lookup is to be written: the job that needs it fails (a new one
  is refused), and no other. Counts that are no plain number of up to nine digits are none.
* A child is not given the attribute ``done`` of its parameters: its parent would take it for one that has ended.
* A parent that cannot read its children, because the server is away, looks again after a second.
* A value in a hash that is no JSON (somebody else wrote it) fails a job whose queue asks for it; whoever reads the job
  is given ``None``.
* All children's results together take at most 1 MiB as JSON text: where they would be more they are left apart, and
  read in pages.
"""

from __future__ import annotations

from stowhand.flows.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
