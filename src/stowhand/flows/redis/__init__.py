"""A flow in Redis or Valkey: each job is a hash, each queue some lists, each transition one script.

engine.py       RedisEngine: connects the parts below                                (start reading here)
layout.py       names of keys, public ids, and queues as the scripts read them
jobs.py         creates, deletes, retries and cancels jobs; inspector.py reads them
store.py        FlowStore: store of a queue's worker; settlements.py, heartbeats.py and wakeups.py are its parts
parents.py      fans out and gathers
server.py       runs the scripts of lua/; dialer.py connects, address.py reads the URL,
                error_translation.py explains errors

* A job is kept for the flow's ``key_life`` from its end. In the priority layout its keys have no time to live before
  that. In the classic layout they have one from their creation, like those of the original implementation, and the
  sweep renews them until the job has ended (so an ended job is kept for at least half of the ``key_life``).
  ``max_length`` limits the memory of a queue that no worker serves.
* The public id of a child is ``<parent>:<child>:<uuid>`` in both layouts. In the classic layout, the lists of its queue
  contain only the uuid.
* Besides the keys, ``layout`` decides whether a worker function receives ``flowName``, ``priority`` and
  ``correlationId`` in addition to its attributes.
* If a key of another application has the name of a queue, a child or a lookup, only the job that needs it fails (a new
  job is refused). A count that is not a plain number of up to nine digits counts as 0.
* A child does not receive the attribute ``done`` of its parameters: its parent would consider it ended.
* A parent that cannot read its children during an outage tries again after a second.
* A value in a hash that is not JSON (written by another application) fails a job whose queue requests it. A reader of
  the job gets ``None``.
* All results of children together take at most 1 MiB as JSON text. Larger ones are stored separately, and read in
  pages.
"""

from __future__ import annotations

from stowhand.flows.redis.engine import RedisEngine

__all__ = ["RedisEngine"]
