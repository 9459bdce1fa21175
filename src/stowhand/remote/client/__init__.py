"""A store that somebody lends over HTTP (``stowhand serve``): a worker needs a token, and no database.

address.py     where it is, and what may be sent there
line.py        one call: its deadline, its reply, what went wrong
proofs.py      what the server gave with each lease, to be shown again
claiming.py    claim and settle
producing.py   enqueue
heart.py       beat, release, abandon: in a thread of its own
attempt.py     what a running handler is given: its execution log, requeue
elsewhere.py   everything that is done where the jobs are kept, and refused here
"""

from __future__ import annotations

from stowhand.remote.client.options import HttpOptions
from stowhand.remote.client.store import HttpStore

__all__ = ["HttpOptions", "HttpStore"]
