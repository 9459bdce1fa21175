"""``Complete``, an outcome that a handler may return, and ``Outcome``, the union of all five outcomes."""

from stowhand.jobs.lifecycle import Complete, Outcome

__all__ = ["Complete", "Outcome"]
