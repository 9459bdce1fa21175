"""One script of SQL, run against the original's schema and ours; then the rows are compared field by field.

What differs is listed in DIFFERENCES with its reason (theirs, then ours), and nothing else may.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from tests.interop.original import Original
from tests.interop.sides import Ours, Row, Side, Theirs

pytestmark = pytest.mark.xdist_group("interop")

LONG = "repeat('x', %d)"
STEPS: dict[str, str] = {
    "an identifier alone": "select * from {schema}.add_job('plain')",
    "every argument by name": """select * from {schema}.add_job(identifier := 'full', payload := '{"a": [1, 2.50]}',
        queue_name := 'q', run_at := '2031-02-03T04:05:06Z', max_attempts := 7, job_key := 'full', priority := -3,
        flags := array['b', 'a', 'b'], job_key_mode := 'replace')""",
    "every argument by place": """select * from {schema}.add_job('places', '{"b": null}', 'q', '2031-01-01Z', 3,
        'places', 9, array['x'], 'preserve_run_at')""",
    "NULL means the default": """select * from {schema}.add_job('nulls', null, null, null, null, null, null, null)""",
    "json_build_object": "select * from {schema}.add_job('build', json_build_object('name', 'Bobby Tables'))",
    "a payload that is not an object": "select * from {schema}.add_job('scalar', '\"text\"')",
    "an empty list of flags": "select * from {schema}.add_job('flagless', flags := '{}')",
    "a relative time": "select * from {schema}.add_job('later', run_at := now() + 2 * interval '1 second')",
    "an update gives nothing": "select * from {schema}.add_job('full', job_key := 'full')",
    "an update gives all": """select * from {schema}.add_job('other', '{"n": 1}', 'r', '2032-01-01Z', 2, 'full', 4,
        array['z'])""",
    "flags are replaced": "select * from {schema}.add_job('other', job_key := 'full', flags := array['y'])",
    "preserve_run_at keeps the time": """select * from {schema}.add_job('places', '{"c": 3}', run_at := '2033-01-01Z',
        job_key := 'places', job_key_mode := 'preserve_run_at')""",
    "replace takes the new time": """select * from {schema}.add_job('places', run_at := '2034-01-01Z',
        job_key := 'places')""",
    "unsafe_dedupe leaves a waiting job": """select * from {schema}.add_job('ignored', '{"x": 1}',
        run_at := '2039-01-01Z', job_key := 'places', job_key_mode := 'unsafe_dedupe')""",
    "unsafe_dedupe without a holder": """select * from {schema}.add_job('first', job_key := 'dedupe',
        job_key_mode := 'unsafe_dedupe')""",
    "lock first": "lock first",
    "unsafe_dedupe leaves a running job": """select * from {schema}.add_job('second', job_key := 'dedupe',
        job_key_mode := 'unsafe_dedupe')""",
    "replace a running job": "select * from {schema}.add_job('second', job_key := 'dedupe')",
    "keyed and failing": "select * from {schema}.add_job('failing', '{\"try\": 1}', job_key := 'failing')",
    "lock failing": "lock failing",
    "fail failing": "fail failing",
    "preserve_run_at after a failure": """select * from {schema}.add_job('failing', '{"try": 2}',
        run_at := '2035-01-01Z', job_key := 'failing', job_key_mode := 'preserve_run_at')""",
    "arrays under one key": "select * from {schema}.add_job('batch', '[1]', job_key := 'batch')",
    "a second array": "select * from {schema}.add_job('batch', '[2, 3]', job_key := 'batch')",
    "remove a waiting job": "select * from {schema}.remove_job('places')",
    "remove what is not there": "select * from {schema}.remove_job('nobody')",
    "keyed and running": "select * from {schema}.add_job('running', job_key := 'running')",
    "lock running": "lock running",
    "remove a running job": "select * from {schema}.remove_job('running')",
    "reschedule": """select * from {schema}.reschedule_jobs(array[id(1), id(4), 987654],
        run_at := '2036-01-01Z', priority := 5, attempts := 5, max_attempts := 9)""",
    "reschedule a part": "select * from {schema}.reschedule_jobs(array[id(1)], priority := 0, attempts := 0)",
    "fail for good": "select * from {schema}.permanently_fail_jobs(array[id(4), id(2)], 'no more')",
    "reschedule what failed for good": "select * from {schema}.reschedule_jobs(array[id(4)], attempts := 0)",
    "complete": "select * from {schema}.complete_jobs(array[id(5), id(2), 987654])",
    "complete what runs": "select * from {schema}.complete_jobs(array[id(10)])",
    "no identifier of this length": f"select * from {{schema}}.add_job({LONG % 129})",
    "an identifier of 128": f"select * from {{schema}}.add_job({LONG % 128})",
    "no queue name of this length": f"select * from {{schema}}.add_job('x', queue_name := {LONG % 129})",
    "no key of this length": f"select * from {{schema}}.add_job('x', job_key := {LONG % 513})",
    "a key of 512": f"select * from {{schema}}.add_job('x', job_key := {LONG % 512})",
    "no attempt at all": "select * from {schema}.add_job('x', max_attempts := 0)",
    "an unknown mode": "select * from {schema}.add_job('x', job_key := 'm', job_key_mode := 'nonsense')",
    "not JSON": "select * from {schema}.add_job('x', '{nonsense')",
    "one attempt": "select * from {schema}.add_job('once', job_key := 'once', max_attempts := 1)",
    "lock once": "lock once",
    "fail once": "fail once",
    "replace what has failed for good": """select * from {schema}.add_job('once', '{"again": true}',
        job_key := 'once')""",
}

OLD, NEW = "0.13.0", "0.17.3"
# Theirs uses up the attempts of a running job that loses its key at once; ours when it fails.
LOST_KEYS = {
    "replace a running job": {"job 9: attempts 25 1"},
    "remove a running job": {"job 13: attempts 25 1"},
}
DIFFERENCES: dict[str, dict[str, set[str]]] = {
    OLD: {
        **LOST_KEYS,
        # Later versions append, and so do we: a batch under one key loses nothing.
        "a second array": {
            "job 12: payload [2, 3] [1, 2, 3]",
            "answer [('batch', '[2, 3]', 25)] [('batch', '[1, 2, 3]', 25)]",
        },
    },
    NEW: {
        **LOST_KEYS,
        # The README's codes; new versions have 23514 for all of them.
        "no identifier of this length": {"answer 23514 GWBID"},
        "no queue name of this length": {"answer 23514 GWBQN"},
        "no key of this length": {"answer 23514 GWBJK"},
        "no attempt at all": {"answer 23514 GWBMA"},
        # The README revives the same job; new versions leave it there without its key and make another.
        "replace what has failed for good": {
            "job 16: attempts 1 0",
            "job 16: key None 'once'",
            "job 16: last_error 'it broke' None",
            "job 16: max_attempts 1 25",
            "job 16: payload {} {'again': True}",
            "job 16: revision 0 1",
            "job 17 is missing here",
        },
    },
}


@pytest.fixture
def sides(both: str, original: Original) -> Iterator[tuple[Theirs, Ours]]:
    with ExitStack() as stack:
        yield (
            stack.enter_context(closing(Theirs(both, original.version))),
            stack.enter_context(closing(Ours(both))),
        )


def test_the_same_script_leaves_the_same_rows(sides: tuple[Theirs, Ours], original: Original) -> None:
    theirs, ours = sides
    result: dict[str, set[str]] = {}
    known: set[str] = set()
    for name, step in STEPS.items():
        output = tuple(_take(side, step) for side in sides)
        differing = _differing(theirs.rows(), ours.rows())
        if output[0] != output[1]:
            differing.add(f"answer {output[0]} {output[1]}")
        if differing - known:
            result[name] = differing - known
        known = differing
    assert result == DIFFERENCES[original.version]


def _take(side: Side, step: str) -> object:
    verb, _, task = step.partition(" ")
    if verb == "lock":
        side.lock(task)
    elif verb == "fail":
        side.fail(task, "it broke")
    else:
        return side.execute(step)
    return None


def _differing(theirs: list[Row], ours: list[Row]) -> set[str]:
    left, right = ({row["id"]: row for row in rows} for rows in (theirs, ours))
    missing = {f"job {rank} is missing {'there' if rank in right else 'here'}" for rank in left.keys() ^ right.keys()}
    return missing | {
        f"job {rank}: {field} {left[rank][field]!r} {right[rank][field]!r}"
        for rank in left.keys() & right.keys()
        for field in left[rank]
        if left[rank][field] != right[rank][field]
    }
