"""How processing of a job ends: settled, released, or reset. Also how a waiting job is canceled."""

from __future__ import annotations

import sqlite3

import msgspec

from stowhand.jobs import lifecycle
from stowhand.jobs.job import State
from stowhand.jobs.lease import ResetJob
from stowhand.jobs.lifecycle import PAYLOAD_CHANGES, WAITING, Settlement
from stowhand.stores.database.sqlite_savepoint import check_written
from stowhand.stores.sqlite.queue.moment import Moment
from stowhand.stores.sqlite.queue.statements import load

SQL = load("finish")


class Held(msgspec.Struct, frozen=True):
    """A running job under a valid lease: the facts that decide its next state."""

    id: int
    token: str
    task: str
    queue: str | None
    worker: str | None
    attempts: int
    max_attempts: int
    resets: int
    max_resets: int | None
    cancel_requested: int
    loses_retries: str | None

    def way_back(self, state: State) -> State:
        """By ``lifecycle.way_back``, which is passed what the row knows."""
        canceled = bool(self.cancel_requested)
        return lifecycle.way_back(state, cancel_requested=canceled, loses_retries=self.loses_retries)


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The new values of a row. ``None`` keeps the old one."""

    state: State
    attempts: int
    resets: int
    run_at: int | None = None
    error: str | None = None
    result: str | None = None
    payload: str | None = None
    epochs: int = 0
    settled_token: str | None = None


def find_held(connection: sqlite3.Connection, job_id: int, token: str) -> Held | None:
    """The fence: the job, if this very lease still holds it."""
    row = connection.execute(SQL["held"], {"id": job_id, "token": token}).fetchone()
    return None if row is None else Held(*row)


def settle(connection: sqlite3.Connection, now: Moment, held: Held, settlement: Settlement, *, history: bool) -> None:
    """Write what the handler's outcome led to."""
    state = held.way_back(settlement.state)
    ending = Ending(
        state=state,
        attempts=max(held.attempts - settlement.refund, 0),
        resets=0,
        run_at=now.after(settlement.delay) if state in WAITING else None,
        error=settlement.error,
        result=settlement.result,
        payload=settlement.payload if settlement.state in PAYLOAD_CHANGES else None,
        settled_token=held.token,
    )
    _write(connection, now, held, ending, history=history)


def give_back(connection: sqlite3.Connection, now: Moment, held: Held, *, history: bool) -> None:
    """Return without using an attempt, due when it was: as if it had never been claimed."""
    state, attempts = held.way_back(State.QUEUED), max(held.attempts - 1, 0)
    _write(connection, now, held, Ending(state=state, attempts=attempts, resets=held.resets), history=history)


def reset(connection: sqlite3.Connection, now: Moment, held: Held, *, history: bool) -> ResetJob:
    """Its worker died; ``lifecycle.reset`` decides whether it may run again."""
    decided = lifecycle.reset(resets=held.resets, max_resets=held.max_resets, max_attempts=held.max_attempts)
    state = held.way_back(decided.state)
    ending = Ending(
        state=state,
        attempts=max(held.attempts - decided.refund, 0),
        resets=held.resets + 1,
        error=decided.error,
        epochs=1,
    )
    _write(connection, now, held, ending, history=history)
    return ResetJob(held.id, held.task, state, held.worker)


def cancel_waiting(connection: sqlite3.Connection, now: Moment, job_id: int, *, history: bool) -> None:
    """At once: no worker runs it."""
    if history:
        nothing = dict.fromkeys(("attempts", "resets", "error", "settled_token", "result", "payload"))
        connection.execute(SQL["archive"], {**nothing, "id": job_id, "state": "canceled", "epochs": 0, "now": now.wall})
    connection.execute(SQL["delete_one"], {"id": job_id})


def _write(connection: sqlite3.Connection, now: Moment, held: Held, ending: Ending, *, history: bool) -> None:
    given = msgspec.structs.asdict(ending) | {"id": held.id, "token": held.token, "now": now.wall}
    given["state"] = ending.state.value
    if ending.state in (State.COMPLETED, State.CANCELED):
        if history:
            connection.execute(SQL["archive"], given)
        check_written(connection.execute(SQL["delete_one"], given))
        return
    given["finished_at"] = now.wall if ending.state is State.FAILED else None
    check_written(connection.execute(SQL["back_or_failed"], given))
