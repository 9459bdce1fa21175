"""Failed jobs by task and class of error."""

from __future__ import annotations

from collections.abc import Sequence

from stowhand.protocols.queue_store import MAX_EXAMINED_FAILURES, Failures
from stowhand.stores.kernel.question import Engine, Query, Question, count_some

_FAILURE_GROUPS = """
SELECT task, error_class, jobs, id, finished_at, since FROM (
    SELECT task, error_class, id, finished_at, count(*) OVER same AS jobs, min(finished_at) OVER same AS since,
        row_number() OVER (PARTITION BY task, error_class ORDER BY finished_at DESC, id DESC) AS place
    FROM (
        SELECT id, task, finished_at, (
            SELECT error_class FROM {tries} WHERE job_id = id ORDER BY place DESC LIMIT 1
        ) AS error_class
        FROM {failed} ORDER BY finished_at DESC, id DESC LIMIT :max_rows
    ) AS newest
    WINDOW same AS (PARTITION BY task, error_class)
) AS numbered WHERE place = 1
"""


def group_failures(engine: Engine) -> Question[Sequence[Failures]]:
    """Group the newest failed jobs by task and the error class of the last attempt, the largest groups first."""
    rows = yield Query(_FAILURE_GROUPS, {"max_rows": MAX_EXAMINED_FAILURES})
    text = "SELECT id, last_error FROM {live_jobs} WHERE id IN :ids"
    errors: dict[int, str | None] = dict((yield Query(text, {"ids": [row[3] for row in rows]})))
    is_full = sum(row[2] for row in rows) == MAX_EXAMINED_FAILURES
    is_cut = is_full and (yield from count_some("{failed}", MAX_EXAMINED_FAILURES)) > MAX_EXAMINED_FAILURES
    groups = [
        Failures(
            *(task, error_class, jobs, latest, engine.read_moment(at), errors.get(latest)),
            *(engine.read_moment(since), is_cut),
        )
        for task, error_class, jobs, latest, at, since in rows
    ]
    return sorted(groups, key=lambda group: (group.jobs, group.latest_at, group.latest), reverse=True)
