"""Composes the statements about a table: the only place where a user's names and SQL become part of a statement.

Names are quoted; values become parameters; text is a programmer's (``Sql``, ``psycopg.sql``), never data (user_sql.py).
Expressions name the view by its alias. If the table has another alias, they may use that too: then the table is joined
to the view. The locked table has names that no expression can mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from msgspec.structs import replace

from stowhand.jobs.conditions import split_conditions
from stowhand.jobs.lifecycle import MIN_SUSPECT_RESETS
from stowhand.stores.database.statements import fill, load_statements, quote_text
from stowhand.stores.postgres.table.catalog import INTEGER_TYPES
from stowhand.stores.postgres.table.user_sql import PostgresWriter, plain, quote_
from stowhand.stores.table.backend import MAX_RESETS_IN_EPOCH
from stowhand.stores.table.check import CatalogFacts
from stowhand.stores.table.names import OWN_ALIAS, TIME_COLUMNS, TOKEN_COLUMN, Shape
from stowhand.stores.table.options import TableOptions, order_of, select_expressions
from stowhand.stores.table.records import RECORD_FIELDS
from stowhand.stores.table.user_sql import names_relation

_MARK_PATTERN = "'/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'"
"""The end of a mark while its claim holds: a slash and the claim's token, 37 characters."""
_NOW_EXPRESSION = "coalesce(%(now)s::timestamptz, statement_timestamp())"
COARSE_TYPE = re.compile(r"\([012]\)")
"""A type too coarse to distinguish two claims of a record: ``timestamp(0) with time zone``."""
_STATEMENTS_FILE = files(__package__).joinpath("statements.sql")


class Composer:
    """Composes the statements about one table of the catalog."""

    def __init__(self, options: TableOptions[Any], shape: Shape, facts: CatalogFacts) -> None:
        shape = _with_schemas(shape, facts)
        self._shape, self._facts, self._retries = shape, facts, options.max_num_retries > 0
        self.waiting_indexes = facts.waiting_indexes(shape, retries=self._retries)
        self._view_alias = quote_(shape.view_label)
        self._types = {name: column.type for name in shape.columns if (column := facts.column(shape, name))}
        record, order = PostgresWriter(shape, "r"), PostgresWriter(shape, "o")
        record_list = record.record(select_expressions(options, shape, tuple(facts.view_columns)))
        self._order = order.order(order_of(options, shape))
        self.values = record.values
        """The parameters of ``read``."""
        self.order_values = order.values
        """The parameters of ``order``."""
        self._fillings = self._columns() | self._guards() | self._moments(options) | self._marks()
        self._fillings |= {"record": record_list, "order": self._order, "shown": self._shown()}
        self._fillings["ordered"] = self._source(self._order, locked=False)
        statements = load_statements(_STATEMENTS_FILE, _KeepPlaceholders())
        self._texts = {name: text.decode() for name, text in statements.items()}
        self._fillings["marking"] = fill(self._texts["marking"], self._fillings)
        composed_names = ("claim", "numbered_within", "pick", "marking", "count", "exists", "read_beside")
        self.statements = {
            name: fill(text, self._fillings).encode()
            for name, text in self._texts.items()
            if name not in composed_names
        }
        """Statements by name. Those with conditions are composed for each set of conditions."""
        if self._is_beside(record_list):
            self.statements["read"] = fill(self._texts["read_beside"], self._fillings).encode()

    def claim(
        self,
        conditions: Sequence[Any],
        *,
        suspects: bool,
        passing: bool = False,
        name: str = "claim",
    ) -> tuple[bytes, dict[str, object]]:
        """Return the statement that picks and marks (``claim``), or only picks (``pick``), and its values.

        ``passing``: skip the records whose keys are in the parameter ``passed``.
        """
        row_conditions, joint_conditions = split_conditions(conditions)
        writer = PostgresWriter(self._shape, "c")
        text, bounds = writer.conditions(row_conditions), writer.bounds(joint_conditions)
        resets = self._row("num_resets", "0")
        suspicion = f" and {resets} {'>=' if suspects else '<'} {MIN_SUSPECT_RESETS}"
        source = self._source(self._order + text + bounds.costs, locked=True)
        fillings = {"source": source, "conditions": text, "suspicion": suspicion, "costs": bounds.costs}
        numbered = "numbered_within" if joint_conditions else "numbered"
        fillings["numbered"] = fill(self._texts[numbered], {"totals": bounds.totals, "within": bounds.within})
        if passing:
            fillings["suspicion"] += f" and {self._row('id')} <> all(%(passed)s::text[]::{self._fillings['id_type']}[])"
        return fill(self._texts[name], self._fillings | fillings).encode(), self.order_values | writer.values

    def counting(self, name: str, conditions: Sequence[Any]) -> tuple[bytes, dict[str, object]]:
        """Return the statement ``count`` or ``exists``, and its values."""
        writer = PostgresWriter(self._shape, "c")
        text = writer.conditions(conditions)
        counted = self._source(text, locked=self._shape.viewed and not self._shows("state"))
        fillings = self._fillings | {"counted": counted, "conditions": text}
        return fill(self._texts[name], fillings).encode(), writer.values

    # -- parts -----------------------------------------------------------------------------------

    def _source(self, text: str, *, locked: bool) -> str:
        """Return the FROM clause: the view, joined with the table if the text names it, or if it is locked."""
        shape = self._shape
        source = plain(shape.view.labelled())
        if not shape.viewed:
            return source
        own_id = f"{self._view_alias}.{plain(shape['id'])}"
        if self._is_beside(text):
            label = quote_(shape.table.label)
            source += f"\n    join {plain(shape.table.labelled())} on {label}.{plain(shape['id'])} = {own_id}"
        if locked:
            renamed = ", ".join(
                f"t.{plain(shape[name])} as stowhand_{name}"
                for name in ("id", "state", "process_after", "finished_at", "num_resets")
            )
            source += (
                f"\n    join (select {renamed} from {plain(shape.table.quoted)} as t) as {OWN_ALIAS}"
                f" on {OWN_ALIAS}.stowhand_id = {own_id}"
            )
        return source

    def _is_beside(self, text: str) -> bool:
        """Return whether the text names the table by an alias that is not the view's."""
        table, view = self._shape.table.label, self._shape.view.label
        return self._shape.viewed and table.lower() != view.lower() and names_relation(table, text)

    def _row(self, name: str, default: str | None = None) -> str:
        """Return a column of the locked relation."""
        if self._shape.viewed:
            column = f"{OWN_ALIAS}.stowhand_{name}"
        else:
            column = f"{self._view_alias}.{plain(self._shape[name])}"
        facts = self._facts.column(self._shape, name)
        return column if default is None or (facts is not None and facts.filled) else f"coalesce({column}, {default})"

    def _shows(self, name: str) -> bool:
        return self._shape.columns[name] in self._facts.view_columns

    def _zoned(self, name: str) -> bool:
        return self._types.get(name, "").startswith("timestamp") and "without time zone" not in self._types[name]

    def _in(self, name: str, moment: str) -> str:
        """Return a time in the column's type: a column without a zone has UTC."""
        return moment if self._zoned(name) else f"(({moment}) at time zone 'UTC')"

    def _read(self, name: str) -> str:
        """Return the column as a timestamp with time zone."""
        if not self._shape.has(name):
            return "null::timestamptz"
        column = f"j.{plain(self._shape[name])}"
        return column if self._zoned(name) else f"({column} at time zone 'UTC')"

    def _shown(self) -> str:
        """Return the columns of a displayed record: ``records.RECORD_FIELDS``."""
        guards, names = self._guards(), {"id", "state", "failure_message"}
        fields = {"cancel": guards["cancel"], "worker_hostname": guards["bare"]}
        fields |= {name: self._read(name) for name in TIME_COLUMNS}
        fields |= {name: f"j.{plain(self._shape[name])}::text" for name in names}
        fields |= {name: f"coalesce(j.{plain(self._shape[name])}, 0)" for name in ("num_failures", "num_resets")}
        return ", ".join(fields[name] for name in RECORD_FIELDS)

    # -- fillings --------------------------------------------------------------------------------

    def _columns(self) -> dict[str, str]:
        shape = self._shape
        names = {name: plain(shape[name]) for name in shape.columns}
        visible = self._shows("state")
        locked = OWN_ALIAS if shape.viewed else self._view_alias
        return names | {
            "table": plain(shape.table.quoted),
            "table_text": plain(quote_text(shape.table.quoted)),
            "locked": locked,
            "view": plain(shape.view.labelled()),
            "view_id": f"{self._view_alias}.{names['id']}",
            "beside": plain(shape.table.labelled()),
            "beside_id": f"{quote_(shape.table.label)}.{names['id']}",
            "key": f"j.{names['id']}::text",
            # An integer may become a bigint while workers run.
            "id_type": "bigint" if self._types["id"] in INTEGER_TYPES else self._types["id"],
            "message_type": self._types["failure_message"],
            "state_type": self._types["state"],
            "log_type": self._types["execution_logs"].removesuffix("[]"),
            "p_id": self._row("id"),
            "seen": f" and exists (select from {plain(shape.view.quoted)} as stowhand_seen"
            f" where stowhand_seen.{names['id']} = j.{names['id']})"
            if shape.viewed
            else "",
            "c_state": f"{self._view_alias}.{names['state']}" if visible else self._row("state"),
        }

    def _guards(self) -> dict[str, str]:
        shape = self._shape
        mark, state = f"j.{plain(shape['worker_hostname'])}", f"j.{plain(shape['state'])}"
        matches, bare = f"right({mark}, 37) = '/' || g.token", f"regexp_replace({mark}, {_MARK_PATTERN}, '')"
        if TOKEN_COLUMN in shape.columns:
            matches, bare = f"j.{plain(shape[TOKEN_COLUMN])} = g.token::{self._types[TOKEN_COLUMN]}", mark
        marked, matches = f"({matches})", f"coalesce({matches} and {self._epoch()} = g.epoch, false)"
        # Rows are found by their ids. The expression prevents an index on the state: one of records in processing has
        # dead entries since the last vacuum, and every settlement would read them.
        held = f"({state}::text || '' = 'processing' and {matches})"
        cancel = f"coalesce(j.{plain(shape['cancel'])}, false)" if shape.has("cancel") else "false"
        signed = f"{mark} is not distinct from %(mark)s"
        if TOKEN_COLUMN in shape.columns:
            signed = f"j.{plain(shape[TOKEN_COLUMN])} is not distinct from %(token)s::text::{self._types[TOKEN_COLUMN]}"
        return {"held": held, "ours": matches, "marked": marked, "bare": bare, "cancel": cancel, "signed": signed}

    def _epoch(self) -> str:
        """Return the expression that distinguishes a claim from later ones with its token: its start in microseconds.

        In a column of whole seconds the next claim may have the same start, so add the number of resets.
        """
        started = f"(extract(epoch from {self._read('started_at')}) * 1000000)::bigint"
        if not COARSE_TYPE.search(self._types["started_at"]):
            return started
        return f"({started} + least(coalesce(j.{plain(self._shape['num_resets'])}, 0), {MAX_RESETS_IN_EPOCH}))"

    def _marks(self) -> dict[str, str]:
        """Return the parts for optional columns: the token, the cancellation request, and the time of queueing."""
        shape = self._shape
        names = ("take_token", "leave_token", "drop_token", "queue_up", "queue_up_unless_canceled")
        fillings = dict.fromkeys(names, "")
        if TOKEN_COLUMN in shape.columns:
            token = plain(shape[TOKEN_COLUMN])
            cancel = self._guards()["cancel"]
            taken = f"%(token)s::text::{self._types[TOKEN_COLUMN]}"
            fillings["take_token"] = f",\n  {token} = case when {cancel} then j.{token} else {taken} end"
            fillings["leave_token"] = f",\n  {token} = case when l.state <> 'queued' then j.{token} end"
            fillings["drop_token"] = f",\n  {token} = null"
        fillings |= dict.fromkeys(("uncancel", "ask_cancel", "cancelable"), "")
        if shape.has("cancel"):
            cancel_column = plain(shape["cancel"])
            fillings |= {"uncancel": f",\n  {cancel_column} = false", "ask_cancel": f",\n  {cancel_column} = true"}
            fillings["cancelable"] = ", 'processing'"
        if shape.has("queued_at"):
            queued, now = plain(shape["queued_at"]), self._in("queued_at", _NOW_EXPRESSION)
            fillings["queue_up"] = f",\n  {queued} = case when l.state = 'queued' then {now} else j.{queued} end"
            fillings["queue_up_unless_canceled"] = (
                f",\n  {queued} = case when l.canceled then j.{queued} else {now} end"
            )
        return fillings

    def _moments(self, options: TableOptions[Any]) -> dict[str, str]:
        short_names = {
            name: name.removesuffix("_at").removesuffix("_after").replace("last_heartbeat", "beat")
            for name in TIME_COLUMNS
        }
        fillings = {
            f"{short_names[name]}_now": self._in(name, _NOW_EXPRESSION)
            for name in TIME_COLUMNS
            if self._shape.has(name)
        }
        fillings |= {f"{short_names[name]}_read": self._read(name) for name in TIME_COLUMNS}
        stale_before = f"{_NOW_EXPRESSION} - (%(stalled)s::float8 + %(slack)s::float8) * interval '1 second'"
        # Every claim writes a heartbeat. A row without one was claimed by the application, and is never stale.
        heartbeat = f"j.{plain(self._shape['last_heartbeat_at'])}"
        fillings["stale"] = f"{heartbeat} < {self._in('last_heartbeat_at', stale_before)}"
        after_delay = f"{_NOW_EXPRESSION} + %(delay)s::float8 * interval '1 second'"
        fillings["after"] = self._in("process_after", f"coalesce(%(after)s::timestamptz, {after_delay})")
        retry_after = f"interval '{round(options.retry_delay * 1e6)} microseconds'"
        fillings |= {"now": _NOW_EXPRESSION, "retry_after": retry_after, "retries": str(self._retries).lower()}
        fillings["epoch"] = self._epoch()
        fillings["eligible"] = self._eligible(retry_after)
        return fillings

    def _eligible(self, retry_after: str) -> str:
        """Return the condition on the locked row, and on the view's columns if it shows them, for its indexes."""
        state, due, finished = self._row("state"), self._row("process_after"), self._row("finished_at")
        states = "in ('queued', 'errored')" if self._retries else "= 'queued'"
        condition = f"{state} {states} and ({due} is null or {due} <= {self._in('process_after', _NOW_EXPRESSION)})"
        if self._retries:
            finished_before = self._in("finished_at", f"{_NOW_EXPRESSION} - {retry_after}")
            condition += f"\n    and ({state} = 'queued' or {finished} is null or {finished} <= {finished_before})"
        if self._shape.viewed and self._shows("state"):
            condition += f"\n    and {self._view_alias}.{plain(self._shape['state'])} {states}"
        return f"{condition}\n    and {self._row('id')} is not null"


def _with_schemas(shape: Shape, facts: CatalogFacts) -> Shape:
    """Return the shape with its schemas: a handler's temporary table would hide a name without a schema."""
    return replace(
        shape, table=replace(shape.table, schema=facts.schema), view=replace(shape.view, schema=facts.view_schema)
    )


class _KeepPlaceholders(dict[str, str]):
    """Fillings that keep every {placeholder}."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"
