"""Checks that there is one row for one id: by a unique index, or by the user's word where there can be none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec

from stowhand.stores.database.link import Session
from stowhand.stores.postgres.table.catalog import Column, Facts
from stowhand.stores.postgres.table.fixes import Mender
from stowhand.stores.postgres.table.sample import look, records_have, sample_of
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.names import Relation, Shape
from stowhand.stores.table.options import TableOptions

MADE = ("nextval(", "gen_random_uuid()", "uuidv7()", "uuid_generate_v")
"""Defaults that give no value twice."""
COUNTED = 1000
"""Records without an id, at most."""


async def key_findings(
    session: Session, facts: Facts, shape: Shape, options: TableOptions[Any]
) -> AsyncIterator[Finding]:
    """In a transaction that only reads."""
    own = shape.columns["id"]
    column, table = facts.columns.get(own), facts.table
    if column is None or table is None or table.kind not in "rp":
        return
    unique = [index for index in facts.indexes if index.unique and index.columns == [own] and index.predicate is None]
    mender = Mender(facts, shape)
    if any(index.valid for index in unique):
        if not column.filled:
            yield await _may_lack(session, facts, shape, mender)
        return
    repeated = await _repeated(session, facts, shape)
    if repeated:
        problem = f"{records_have(repeated, facts)} no {own}, or one that another record has"
        yield mender.beside("id", problem)
    elif options.unique_ids:
        if not any(index.valid and index.columns[0] == own and index.predicate is None for index in facts.indexes):
            mend = mender.index((own,))
            yield Finding(f"no index on ({own}), by which every write finds its record", mend, fatal=False)
    elif table.kind == "p":
        yield Finding(
            f"column {own} has no unique index, and a partitioned table can have one only where the partition's key is"
            f" part of it: if no two of its rows have the same {own}, say so: unique_ids=True, or --unique-ids"
        )
    elif unique:
        name = Relation(unique[0].name, table.schema)
        mend = f"REINDEX INDEX {'CONCURRENTLY ' * facts.big}{name.quoted};"
        yield Finding(f"the unique index {name.name} is not valid", mend, alone=facts.big)
    elif _may_repeat(facts, column):
        yield mender.beside("id", f"column {own} has no unique index, and is unique only together with others")
    else:
        yield Finding(f"column {own} has no unique index", mender.unique(own), alone=facts.big)


async def _may_lack(session: Session, facts: Facts, shape: Shape, mender: Mender) -> Finding:
    """A unique index lets any number of NULLs in. By it they are counted without a walk over the table."""
    own, key = shape.columns["id"], shape["id"]
    found = await look(
        session,
        f"SELECT count(*)::int8 FROM (SELECT FROM {mender.table} WHERE {key} IS NULL LIMIT {COUNTED + 1}) AS found",
    )
    lacking = found[0][0] if found else 0
    fill = mender.fill_id(own) if lacking and _is_made(facts.columns[own]) else ""
    if not lacking:
        problem = f"column {own} may be NULL: a record without one is never claimed, nor listed"
        return Finding(problem, mender.forbid_null(own), fatal=False, alone=facts.big)
    many = f"more than {COUNTED} records have" if lacking > COUNTED else records_have(lacking)
    problem = f"{many} no {own} (NULL): never claimed, nor listed"
    if not fill:
        return msgspec.structs.replace(mender.beside("id", problem, fatal=False), warned=True)
    return Finding(problem, f"{fill}\n{mender.forbid_null(own)}", fatal=False, warned=True, alone=facts.big)


def _is_made(column: Column) -> bool:
    return bool(column.identity) or (column.default or "").startswith(MADE)


def _may_repeat(facts: Facts, column: Column) -> bool:
    """It stands in a key of several columns, and nothing gives each row one of its own."""
    if facts.ids_repeat:
        return True
    return not _is_made(column) and any(index.unique and column.name in index.columns for index in facts.indexes)


async def _repeated(session: Session, facts: Facts, shape: Shape) -> int:
    """Rows of a sample that have no id, or one that another row has."""
    key, some = shape["id"], sample_of(facts, shape)
    found = await look(session, f"SELECT count(*)::int8, count(DISTINCT {key})::int8 FROM {some}")
    return found[0][0] - found[0][1] if found else 0
