"""Which jobs to list, search, change and purge, and what the store answers."""

from stowhand.app.answers import ids_of
from stowhand.protocols.operating import Ages
from stowhand.protocols.queue_store import Answer, Done, JobFilter, Reschedule
from stowhand.protocols.searching import Search

__all__ = ["Ages", "Answer", "Done", "JobFilter", "Reschedule", "Search", "ids_of"]
