"""Which jobs to list, search, change and purge, and what the store answers."""

from stowhand.app.answers import ids_of
from stowhand.protocols.operator import Ages
from stowhand.protocols.queue_store import ActionResult, Answer, JobFilter, Reschedule
from stowhand.protocols.search import Search

__all__ = ["ActionResult", "Ages", "Answer", "JobFilter", "Reschedule", "Search", "ids_of"]
