"""A flow in Redis or Valkey: each job is a hash, each queue some lists, each transition one script.

engine.py       RedisEngine: connects the parts below                                (start reading here)
layout.py       names of keys, ids as people see them, queues as scripts know them
jobs.py         creates, deletes, retries and cancels jobs; inspector.py reads them
store.py        FlowStore: what a worker asks of a queue; settlements.py, heartbeats.py and wakeups.py are its parts
parents.py      fans out and gathers
server.py       runs the scripts of lua/; dialer.py connects, address.py reads the URL,
                error_translation.py explains errors

* A job is kept for the flow's ``key_life`` from its end. In the priority layout nothing of it has a time to live before
  that; in the classic layout it has one from its creation, as the original writes it, and the sweep renews what has not
  ended (so there it is kept for half of the ``key_life`` at least). ``max_length`` bounds memory where no
  worker serves a queue.
* A child's id is ``<parent>:<child>:<uuid>`` for people, in both layouts; in the classic layout only the uuid stands in
  its queue's lists.
* ``layout`` decides, besides the keys, whether a worker function is given ``flowName``, ``priority`` and
  ``correlationId`` besides what it asks for.
* Where a key of another application has the name of a queue, a child or a lookup, the job that needs it fails (a new
  one is refused), and no other. A count that is not a plain number of up to nine digits is taken for 0.
* A child is not given the attribute ``done`` of its parameters: its parent would take it for one that has ended.
* A parent that cannot read its children, because the server is away, tries again after a second.
* A value in a hash that is not JSON (another application wrote it) fails a job whose queue asks for it; a reader of the
  job gets ``None``.
* All children's results together take at most 1 MiB as JSON text: where they would be more they are left apart, and
  read in pages.
"""

from __future__ import annotations

from stowhand.flows.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
