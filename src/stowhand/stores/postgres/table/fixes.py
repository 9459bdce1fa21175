"""Makes the DDL that mends what a check finds: complete, with schema, ready to be run by the table's owner.

It loses nothing: what a worker cannot use stays as it is, and the worker gets a new column beside it. Of a big table
nothing rewrites every row in one statement, and no index locks its writers out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from stowhand.jobs.job import State
from stowhand.stores.postgres.table.catalog import Column, Entry, Facts, Rule
from stowhand.stores.table.backend import Finding
from stowhand.stores.table.ddl import POSTGRES_COLUMNS, index_ddl, short
from stowhand.stores.table.ddl import Index as Recommended
from stowhand.stores.table.judging import CARRIED, unused
from stowhand.stores.table.names import Shape, quote

STATES = ", ".join(f"'{state}'" for state in State)
BATCH = 1000
"""Pages of a big table that one statement writes."""
_DEFAULT = re.compile(r"DEFAULT (.+)$")


class Mender:
    """Statements about one table."""

    def __init__(self, facts: Facts, shape: Shape) -> None:
        assert facts.table is not None
        self._facts = facts
        self._shape = shape
        self._entry = facts.table
        self.table = f"{quote(facts.table.schema)}.{quote(facts.table.name)}"

    def alter(self, *actions: str) -> str:
        """ALTER TABLE, with all actions at once."""
        return f"ALTER TABLE {self.table} {', '.join(actions)};"

    def alter_column(self, documented: str, *actions: str) -> str:
        """The same for one column."""
        return self.alter(*(f"ALTER COLUMN {self._shape[documented]} {action}" for action in actions))

    @property
    def is_big(self) -> bool:
        """A statement that locks it, or writes every row, would be felt."""
        return self._facts.big

    # -- new columns -----------------------------------------------------------------------------

    def add(self, documented: str, own: str | None = None) -> str:
        """The column, so that no row that is there begins to run. ``own``: under another name than the shape's."""
        own = own or self._shape.columns[documented]
        name = quote(own)
        if documented == "id":
            return self._add_numbers(own)
        if documented == "state":
            return (
                f"{self.alter(f'ADD COLUMN {name} text NOT NULL DEFAULT {_completed()}')}\n"
                f"{self.alter(f'ALTER COLUMN {name} SET DEFAULT {default_of(documented)}')}"
            )
        if documented == "queued_at":  # the rows that are there were not queued now
            return (
                f"{self.alter(f'ADD COLUMN {name} timestamptz')}\n"
                f"{self.alter(f'ALTER COLUMN {name} SET DEFAULT {default_of(documented)}')}"
            )
        return self.alter(f"ADD COLUMN {name} {POSTGRES_COLUMNS[documented]}")

    def beside(self, documented: str, problem: str, *, using: str = "", fatal: bool = True) -> Finding:
        """A column of the worker's own, where the one that is there must be left alone.

        ``using``: an expression of the old column (``{}``) for the new one's value, where a waiting record needs it.
        """
        own = self.free("job_no" if documented == "id" else f"job_{documented}")
        mend = self.add(documented, own)
        if using and documented in CARRIED and not self._facts.empty:
            old = self._shape[documented]
            value = using.format(old)
            where = f"{value} IN ({STATES})" if documented == "state" else f"{old} IS NOT NULL"
            mend += "\n" + self._write(own, value, f"{where} AND {quote(own)} IS DISTINCT FROM {value}")
        seen = ", which the view must show" if self._shape.viewed and documented in ("id", "state") else ""
        return Finding(
            f"{problem}; the worker gets a column of its own, {own}{seen}",
            mend,
            fatal,
            columns={documented: own},
            alone="DO $" in mend,
        )

    def free(self, name: str) -> str:
        """The name, or the next one that no column has."""
        return unused(name, self._facts.columns.__contains__)

    def _add_numbers(self, own: str) -> str:
        """A number for every row, from a sequence. Where the table is big nothing rewrites it at once."""
        name, primary = quote(own), any(index.primary for index in self._facts.indexes)
        if self._entry.kind == "p":
            # Unique by its sequence; an index that says so can stand on the partition's key alone.
            return f"{self.alter(f'ADD COLUMN {name} bigserial')}\n{self.index((own,))}"
        if not self._facts.big:
            return self.alter(f"ADD COLUMN {name} bigserial {'UNIQUE' if primary else 'PRIMARY KEY'}")
        sequence = f"{quote(self._entry.schema)}.{quote(short(f'{self._entry.name}_{own}_seq'))}"
        next_one = "nextval('" + sequence.replace("'", "''") + "')"
        return "\n".join(
            (
                self.alter(f"ADD COLUMN {name} bigint"),
                f"CREATE SEQUENCE {sequence} OWNED BY {self.table}.{name};",
                self.alter(f"ALTER COLUMN {name} SET DEFAULT {next_one}"),
                self._write(own, next_one, f"{name} IS NULL"),
                *self._filled(own),
                self.unique(own),
            )
        )

    # -- rows ------------------------------------------------------------------------------------

    def _write(self, own: str, value: str, where: str) -> str:
        """A value into a column of the rows that are there. In a big table it is committed batch by batch: no lock on
        a row is held for long, and what was interrupted is run again. What is written is not found twice."""
        name = quote(own)
        if not self._facts.big or self._entry.kind != "r":
            return f"UPDATE {self.table} SET {name} = {value} WHERE {where};"
        size = "pg_relation_size('" + self.table.replace("'", "''") + "')"
        return (
            f"DO $batches$ DECLARE page int8 := 0; BEGIN\n"
            f"  WHILE page <= {size} / current_setting('block_size')::int8 LOOP\n"
            f"    UPDATE {self.table} SET {name} = {value}\n"
            f"      WHERE ctid >= format('(%s,0)', page)::tid AND ctid < format('(%s,0)', page + {BATCH})::tid\n"
            f"        AND {where};\n"
            f"    COMMIT;\n"
            f"    page := page + {BATCH};\n"
            f"  END LOOP;\nEND $batches$;"
        )

    def fill(self, documented: str) -> Finding:
        """No NULL in a counter: the parts of a finding, but for what it says."""
        fresh, own = default_of(documented), self._shape.columns[documented]
        empty = f"{quote(own)} IS NULL"
        write = self._write(own, fresh or "0", empty)
        return Finding("", f"{self.set_default(documented)}\n{write}", fatal=False, alone="DO $" in write)

    def fill_id(self, own: str) -> str:
        """The column's own default, for the rows where it is NULL."""
        return self._write(own, "DEFAULT", f"{quote(own)} IS NULL")

    def forbid_null(self, own: str) -> str:
        """The same for the rows to come."""
        if self._facts.big:
            return "\n".join(self._filled(own))
        return self.alter(f"ALTER COLUMN {quote(own)} SET NOT NULL")

    def _filled(self, own: str) -> tuple[str, ...]:
        """NOT NULL, without a scan under the lock that keeps every other session out."""
        name, rule = quote(own), quote(short(f"{self._entry.name}_{own}_filled"))
        return (
            self.alter(f"ADD CONSTRAINT {rule} CHECK ({name} IS NOT NULL) NOT VALID"),
            self.alter(f"VALIDATE CONSTRAINT {rule}"),
            self.alter(f"ALTER COLUMN {name} SET NOT NULL", f"DROP CONSTRAINT {rule}"),
        )

    # -- indexes ---------------------------------------------------------------------------------

    def unique(self, own: str) -> str:
        """One row for one value. Of a table without a primary key it becomes that."""
        if self._facts.big:
            name = quote(short(f"{self._entry.name}_{own}_key"))
            return f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {self.table} ({quote(own)});"
        primary = any(index.primary for index in self._facts.indexes)
        return self.alter(f"ADD {'UNIQUE' if primary else 'PRIMARY KEY'} ({quote(own)})")

    def index(self, own: Sequence[str]) -> str:
        """On these columns, for all rows."""
        return index_ddl(self._shape, Recommended("_".join(own), ()), own=own)

    def recommended(self, wanted: Recommended, own: Sequence[str]) -> str:
        """An index that keeps claims fast. Of a big table it is built beside its writers, partition by partition."""
        wanted = msgspec.structs.replace(wanted, suffix=self._free_suffix(wanted.suffix))
        partitions = self._entry.partitions
        if not self._facts.big or (self._entry.kind == "p" and not partitions):
            return index_ddl(self._shape, wanted, own=own)
        if not partitions:
            return index_ddl(self._shape, wanted, own=own, online=True)
        whole = quote(short(f"{self._entry.name}_{wanted.suffix}"))
        columns = ", ".join(map(quote, own))
        where = f" WHERE {found}" if (found := wanted.predicate(self._shape)) else ""
        parts = [f"CREATE INDEX {whole} ON ONLY {self.table} ({columns}){where};"]
        for schema, name in partitions:
            part = quote(short(f"{name}_{wanted.suffix}"))
            parts.append(f"CREATE INDEX CONCURRENTLY {part} ON {quote(schema)}.{quote(name)} ({columns}){where};")
            parts.append(f"ALTER INDEX {quote(self._entry.schema)}.{whole} ATTACH PARTITION {quote(schema)}.{part};")
        return "\n".join(parts)

    def _free_suffix(self, suffix: str) -> str:
        """Another index of the table may have the name, on columns that were in the place of these."""
        taken = {index.name for index in self._facts.indexes}
        return unused(suffix, lambda found: short(f"{self._entry.name}_{found}") in taken)

    # -- what is there ---------------------------------------------------------------------------

    def retype(self, documented: str, column: Column, wanted: str, using: str) -> str:
        """The column in another type that holds all it held. Views that show it are made anew; empty where that
        cannot be done safely."""
        name = self._shape[documented]
        actions = [f"ALTER COLUMN {name} TYPE {wanted} USING {using.format(name)}"]
        fresh = default_of(documented)
        if (
            column.default is not None and fresh is not None and wanted != "text"
        ):  # what a text held, a longer one holds
            actions = [
                f"ALTER COLUMN {name} DROP DEFAULT",
                *actions,
                f"ALTER COLUMN {name} SET DEFAULT {fresh}",
            ]
        return self._without_views(column, self.alter(*actions))

    def zone(self, documented: str, column: Column) -> str:
        """A timestamp that keeps UTC gets its zone. Where the session's zone is UTC, no row is rewritten."""
        wanted = "timestamp with time zone"
        if not self.is_big:
            return self.retype(documented, column, wanted, "{} AT TIME ZONE 'UTC'")
        statement = self.alter_column(documented, f"TYPE {wanted}")
        mend = self._without_views(column, statement)
        return f"BEGIN;\nSET LOCAL TIME ZONE 'UTC';\n{mend}\nCOMMIT;" if mend else ""

    def set_default(self, documented: str) -> str:
        """As in the documents."""
        return self.alter_column(documented, f"SET DEFAULT {default_of(documented)}")

    def allow_null(self, documented: str) -> str:
        """Where we write NULL."""
        return self.alter_column(documented, "DROP NOT NULL")

    def widen(self, rule: Rule) -> str:
        """A CHECK of the state lets ours pass, and what it let pass before. There is always one of the two, and rows
        are compared with the new one beside their writers."""
        name, wider = quote(rule.name), quote(short(f"{rule.name}_wider"))
        if rule.domain is not None:
            expression = f"({rule.expression}) OR VALUE IN ({STATES})"
            target = f"ALTER DOMAIN {rule.domain}"
        else:
            expression = f"({rule.expression}) OR {self._shape['state']} IN ({STATES})"
            target = f"ALTER TABLE {self.table}"
        return "\n".join(
            (
                f"{target} ADD CONSTRAINT {wider} CHECK ({expression}) NOT VALID;",
                f"{target} VALIDATE CONSTRAINT {wider};",
                f"{target} DROP CONSTRAINT {name};",
                f"{target} RENAME CONSTRAINT {wider} TO {name};",
            )
        )

    def _without_views(self, column: Column, statement: str) -> str:
        views = [self._facts.views[oid] for oid in column.views or ()]
        if any(view.used or view.kind != "v" for view in views):
            return ""
        drops = [f"DROP VIEW {view.name};" for view in views]
        makes = []
        for view in views:
            options = f" WITH ({', '.join(view.options)})" if view.options else ""
            makes.append(f"CREATE VIEW {view.name}{options} AS\n{view.definition.strip()}")
            makes.append(f"ALTER VIEW {view.name} OWNER TO {quote(view.owner)};")
            makes.extend(view.grants or ())
        return "\n".join([*drops, statement, *makes])


def default_of(documented: str) -> str | None:
    """What the documents give the column where an INSERT gives nothing."""
    found = _DEFAULT.search(POSTGRES_COLUMNS.get(documented, ""))
    return found[1] if found else None


def add_labels(column: Column, missing: Sequence[str]) -> str:
    """Add to an enum the states that it lacks."""
    return "\n".join(f"ALTER TYPE {column.type} ADD VALUE IF NOT EXISTS '{state}';" for state in missing)


def grant(what: str, entry: Entry, user: str, kind: str = "") -> str:
    """A right on a table, view or schema."""
    target = quote(entry.schema) if kind == "SCHEMA " else f"{quote(entry.schema)}.{quote(entry.name)}"
    return f"GRANT {what} ON {kind}{target} TO {quote(user)};"


def _completed() -> str:
    return f"'{State.COMPLETED}'"
