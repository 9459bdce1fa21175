"""Stowhand: background jobs in Python on the store you already have. One worker, any store.

worker.py      the life of a job: take, work, settle, beat, stop        (start reading here)
lifecycle.py   the law: states, outcomes, settlements
store.py       the seams to wherever jobs live; ``stores/`` are the ones we ship
tasks/         @app.task, enqueueing, dispatch
service/       settings, supervised processes, signals
cli/           one file per command
"""

from __future__ import annotations

__version__ = "0.1.0"
