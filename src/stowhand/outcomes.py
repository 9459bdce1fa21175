"""``Complete``, an outcome that a handler may return, and ``Outcome``: any of the five."""

from stowhand.jobs.lifecycle import Complete, Outcome

__all__ = ["Complete", "Outcome"]
