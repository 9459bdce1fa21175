"""A user's table and view, compared with the options: all that is wrong, each trouble with the DDL that mends it.

    facts.py       what the catalog says
    findings.py    what is wrong with that (column_types.py, mending.py)
    identity.py    is there one row for one id
    glance.py      a bounded look at rows and plans
    trying.py      the options' expressions, planned by the server

For ``open``: ``facts, warnings = await admit(line, options, shape)``, then
``shape.lacking(*absent_columns(facts, shape))``.

No row is touched, and no lock taken beyond what a SELECT takes: all of it runs in one read-only transaction.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from stowhand.database.link import Line
from stowhand.stores.table.backend import Finding, refuse_fatal
from stowhand.stores.table.names import OPTIONAL, Shape
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.postgres.facts import Facts, survey
from stowhand.stores.table.postgres.findings import advise, judge
from stowhand.stores.table.postgres.glance import glance
from stowhand.stores.table.postgres.identity import key_findings
from stowhand.stores.table.postgres.looking import be_brief
from stowhand.stores.table.postgres.trying import try_expressions

PATIENCE = 5
"""Seconds that a lock is waited for."""


async def check(line: Line, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """What there is, and every trouble with it: the fatal ones first. Raises what psycopg raises."""
    async with _only_reading(line):
        facts = await survey(line, shape)
        found = list(judge(facts, shape))
        await be_brief(line)
        found += [finding async for finding in key_findings(line, facts, shape, options)]
        moved = {documented for finding in found for documented in finding.columns}
        found += [finding async for finding in glance(line, facts, shape, moved)]
        given = {documented: own for finding in reversed(found) for documented, own in finding.columns.items()}
        then = msgspec.structs.replace(shape, columns={**shape.columns, **given})
        found += advise(facts, then, options)
        if not any(finding.fatal for finding in found):
            lacking = shape.lacking(*absent_columns(facts, shape))
            found += [finding async for finding in try_expressions(line, lacking, options, facts)]
    return facts, sorted(_mended_once(found), key=lambda finding: not finding.fatal)


def _mended_once(found: Sequence[Finding]) -> Iterator[Finding]:
    """Two troubles with one column, and the worker gets one column of its own."""
    given: set[str] = set()
    for finding in found:
        again = bool(finding.columns) and given.issuperset(finding.columns)
        given.update(finding.columns)
        yield msgspec.structs.replace(finding, mend="") if again else finding


async def admit(line: Line, options: TableOptions[Any], shape: Shape) -> tuple[Facts, Sequence[Finding]]:
    """For ``open``: what there is, if a worker can serve it, and what such a worker is to be warned of.

    Raises TableUnsuitable with every fatal finding.
    """
    facts, found = await check(line, options, shape)
    refuse_fatal(shape, found)
    return facts, [finding for finding in found if finding.warned]


def absent_columns(facts: Facts, shape: Shape) -> tuple[str, ...]:
    """The optional ones that the table does not have: for ``Shape.lacking``."""
    return tuple(name for name in OPTIONAL if facts.column(shape, name) is None)


@asynccontextmanager
async def _only_reading(line: Line) -> AsyncIterator[None]:
    """A transaction in which nothing can be written, and nobody is waited for longer than a few seconds."""
    async with line.transaction():
        await line.execute(
            b"set transaction read only; set local timezone = 'UTC'; set local lock_timeout = '%ds'" % PATIENCE
        )
        yield
