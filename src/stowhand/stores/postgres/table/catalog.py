"""What PostgreSQL's catalog says about a user's table and view. Facts only; what is wrong with them: checks.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files

import msgspec
from msgspec.structs import replace

from stowhand.jobs.job import State
from stowhand.stores.database.link import Row, Session, rows
from stowhand.stores.database.statements import load_statements
from stowhand.stores.table.names import Relation, Shape

BIG = 2560
"""Pages: 20 MiB."""
_SQL = load_statements(files(__package__).joinpath("catalog.sql"), {})


class Server(msgspec.Struct, frozen=True):
    """What we are connected to, and as whom."""

    standby: bool
    read_only: bool
    user: str
    search_path: str


class Entry(msgspec.Struct, frozen=True):
    """A table, a view, or what else has rows."""

    oid: int
    schema: str
    name: str
    kind: str
    """``r`` table, ``p`` partitioned table, ``v`` view, ``m`` materialised view, ``f`` foreign table."""
    partition: bool
    persistence: str
    reachable: bool
    """We may use its schema."""
    filtered: bool
    """Row security hides rows from us."""
    parent_keys: list[str] | None
    own_keys: list[str] | None
    pages: int
    """Of 8 KiB; of a partitioned table, all partitions' together."""
    partitions: list[list[str]] | None
    """Schema and name of each partition, where all of them are plain tables."""
    rules: list[str] | None
    """Rules for UPDATE."""


class Column(msgspec.Struct, frozen=True):
    """One column, domains resolved."""

    name: str
    type: str
    """As ``format_type`` says: ``text``, ``character varying(255)``, ``timestamp with time zone``, ``json[]``."""
    domain: str | None
    filled: bool
    """NOT NULL, by itself or by its domain."""
    own_not_null: bool
    generated: str
    """``s`` stored, ``v`` virtual, or empty."""
    identity: str
    default: str | None
    labels: list[str] | None
    """Of an enum."""
    readable: bool
    writable: bool
    views: list[int] | None
    """That show it."""


class Index(msgspec.Struct, frozen=True):
    """One index; ``columns`` are names, or expressions."""

    name: str
    unique: bool
    primary: bool
    valid: bool
    predicate: str | None
    columns: list[str]

    def waits(self, state: str, *, retries: bool) -> bool:
        """It holds what waits, and not what is over. ``state``: the column."""
        if self.predicate is None or state not in self.predicate:
            # A column of its own gives the order of one state alone.
            return bool(self.columns) and self.columns[0] == state and not retries
        named = {one for one in State if f"'{one}'" in self.predicate}
        return State.QUEUED in named and named <= {State.QUEUED, State.ERRORED}


class Rule(msgspec.Struct, frozen=True):
    """A CHECK of the table, or of a column's domain."""

    name: str
    expression: str
    columns: list[str] | None
    domain: str | None


class Reference(msgspec.Struct, frozen=True):
    """A foreign key of one column."""

    column: str
    table: str
    """With its schema, as SQL names it."""
    key: str


class View(msgspec.Struct, frozen=True):
    """What is needed to make a view anew."""

    name: str
    """With its schema, as SQL names it."""
    kind: str
    definition: str
    options: list[str] | None
    owner: str
    grants: list[str] | None
    used: bool
    """Something else in the database depends on it, or it has triggers or rules."""


class Trigger(msgspec.Struct, frozen=True):
    """Run for each row that a heartbeat updates."""

    name: str
    source: str
    """Of its function."""
    when: str
    """Its condition, or nothing."""
    arguments: list[str]


class Facts(msgspec.Struct, frozen=True):
    """All of it. ``table`` or ``view`` is ``None`` where there is none of that name."""

    server: Server
    table: Entry | None
    view: Entry | None
    columns: Mapping[str, Column] = {}
    """Of the table, by their own names, in order."""
    view_columns: Mapping[str, Column] = {}
    """Of the view, or of the table where no view was given."""
    indexes: Sequence[Index] = ()
    rules: Sequence[Rule] = ()
    references: Sequence[Reference] = ()
    heartbeat_triggers: Sequence[Trigger] = ()
    triggered: bool = False
    """A trigger runs after an INSERT."""
    views: Mapping[int, View] = {}
    """Those that show a column of the table."""
    around: Sequence[tuple[str, str, str]] = ()
    """Schema, name and kind of what there is, if one of the two was not found."""
    ids_repeat: bool = False
    """The server's statistics found an id more than once."""

    @property
    def big(self) -> bool:
        """A lock on it, or a statement that writes every row, would be felt."""
        return self.table is not None and self.table.pages > BIG

    @property
    def empty(self) -> bool:
        """No row has ever been written, or a VACUUM has given the pages of all of them back."""
        return self.table is not None and self.table.kind in "rp" and self.table.pages == 0

    def waiting_indexes(self, shape: Shape, *, retries: bool) -> list[str]:
        """Names of the indexes that hold what waits and not what is over: by one of them a claim may walk in order.

        Whether it gives the order of claims too, a plan says (claiming.py). ``retries``: failed attempts are retried.
        """
        state = shape.columns["state"]
        return [index.name for index in self.indexes if index.valid and index.waits(state, retries=retries)]

    def column(self, shape: Shape, documented: str) -> Column | None:
        """The table's column for a documented name."""
        return self.columns.get(shape.columns[documented])


async def survey(session: Session, shape: Shape) -> Facts:
    """Read the facts, in a transaction. Raises what psycopg raises."""

    async def ask(name: str, *values: object) -> list[Row]:
        return await rows(session, _SQL[name], values)

    async def entry(relation: Relation) -> Entry | None:
        found = await ask("relation", relation.name, relation.schema, relation.schema)
        return Entry(*found[0]) if found else None

    async def columns_of(there: Entry | None) -> dict[str, Column]:
        found = [] if there is None else await ask("columns", there.oid, there.oid)
        return {column.name: column for column in (Column(*row) for row in found)}

    (server,) = await ask("server")
    table = await entry(shape.table)
    view = await entry(shape.view) if shape.viewed else table
    around = await ask("relations_around") if table is None or view is None else []
    await ask("search_path", "")
    columns = await columns_of(table)
    facts = Facts(
        Server(*server),
        table,
        view,
        columns,
        await columns_of(view) if shape.viewed else columns,
        around=[(schema, name, kind) for schema, name, kind in around],
    )
    if table is not None:
        beat, key = shape.columns["last_heartbeat_at"], shape.columns["id"]
        oids = sorted({oid for column in columns.values() for oid in column.views or ()})
        facts = replace(
            facts,
            indexes=[Index(*row) for row in await ask("indexes", table.oid)],
            rules=[Rule(*row) for row in await ask("rules", table.oid, table.oid)],
            references=[Reference(*row) for row in await ask("references", table.oid)],
            heartbeat_triggers=[Trigger(*row) for row in await ask("heartbeat_triggers", table.oid, beat)],
            triggered=(await ask("triggered", table.oid))[0][0],
            ids_repeat=any(ratio != -1 for (ratio,) in await ask("distinct", table.schema, table.name, key)),
            views={row[0]: View(*row[1:]) for row in await ask("view", oids)} if oids else {},
        )
    await ask("search_path", facts.server.search_path)
    return facts
