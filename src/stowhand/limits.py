"""Limits of a task over all workers: ``@app.task(limits=[Concurrency(50), Rate(5, per="1s")])``."""

from stowhand.jobs.lifecycle import RateLimited
from stowhand.jobs.task_limits import Concurrency, LimitValues, Rate

__all__ = ["Concurrency", "LimitValues", "Rate", "RateLimited"]
