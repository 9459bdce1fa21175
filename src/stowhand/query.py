"""Filters for listing, searching, changing and purging jobs, and the answers of the store."""

from stowhand.app.answers import ids_of
from stowhand.protocols.operator import Ages
from stowhand.protocols.queue_store import ActionResult, Answer, JobFilter, Reschedule
from stowhand.protocols.search import Search

__all__ = ["ActionResult", "Ages", "Answer", "JobFilter", "Reschedule", "Search", "ids_of"]
