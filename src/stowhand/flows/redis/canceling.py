"""Jobs of a flow in Redis, canceled where they are."""

from __future__ import annotations

from stowhand.flows.redis.looking import Looking
from stowhand.flows.redis.naming import Naming
from stowhand.flows.redis.queues import QueueAt
from stowhand.flows.redis.server import Server
from stowhand.flows.redis.values import state_of
from stowhand.flows.view import Stage
from stowhand.protocols.queue_store import Answer, Done

MAX_LOOKS = 40
"""A job may move on between a look and the script."""
_ENDED = {
    Stage.COMPLETED: (Done.REFUSED, "it has completed already"),
    Stage.FAILED: (Done.REFUSED, "it has failed already; delete it, or retry it"),
    Stage.CANCELED: (Done.UNCHANGED, "it is canceled already"),
    Stage.LOST: (Done.REFUSED, "no list of its queue has it; delete it, or retry it"),
}


class Canceling:
    """For the jobs of one flow, children included."""

    def __init__(self, naming: Naming, looking: Looking, server: Server) -> None:
        self._looking, self._naming = looking, naming
        self._server = server
        self._queues = {queue.name: QueueAt(naming.keys, queue) for queue in naming.keys.shape.all_queues()}

    async def cancel(self, job_id: str) -> Answer:
        """At once if it waits; a running one is asked to stop. A repeat does the same again."""
        spot = self._naming.spot(job_id)
        for _ in range(MAX_LOOKS):
            found = None if spot is None else await self._looking.find(spot)
            if spot is None or found is None:
                return Answer(job_id, Done.MISSING, f"there is no job {job_id}")
            stage, name = state_of(self._naming.keys.shape, found)
            if stage in _ENDED:
                return Answer(job_id, *_ENDED[stage])
            queue = self._queues.get(name or "")
            if queue is None:
                return Answer(job_id, Done.REFUSED, f"it is in {name!r}, which is no queue of this flow")
            match await self._server.run("cancel", (spot.hash,), queue.text, spot.listed, unanswered=True):
                case "canceled":
                    return Answer(job_id, Done.DONE)
                case "asked":
                    return Answer(job_id, Done.ASKED, "it is running; its worker will stop it")
        return Answer(job_id, Done.REFUSED, "it has changed just now; try again")
