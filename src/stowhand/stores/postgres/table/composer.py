"""Composer of the statements about a table: the only place where a user's names and SQL become part of a statement.

Names are quoted, and values become parameters. Text is written by a programmer (``Sql``, ``psycopg.sql``); it is never
data (user_sql.py).

Without a view, records are read from the table. With a view, a claim reads the view and locks the table. Expressions
name the view by its alias. They may also name the table by its alias, if that differs: then the table is joined to the
view. The locked table has an alias and columns (``stowhand_…``) that no expression names by accident.

statements.sql has the texts. Its {placeholders} are filled here, and its head explains those that are conditions. All
texts pass through psycopg, so a percent sign in a name is doubled (``plain``, ``quote_``).
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
"""The end of a mark while the lease is held: a slash and the claim's token, 37 characters."""
_NOW_EXPRESSION = "coalesce(%(now)s::timestamptz, statement_timestamp())"
"""The store's pinned time, if it has one; otherwise the database's."""
COARSE_TYPE = re.compile(r"\([012]\)")
"""Types too coarse to distinguish two claims of a record, such as ``timestamp(0) with time zone``."""
_STATEMENTS_FILE = files(__package__).joinpath("statements.sql")


class Composer:
    """The statements about one table of the catalog.

    Statements without conditions are composed once, and those with conditions (``claim``, ``counting``) at each call.
    An invalid expression or condition raises ConfigurationError.
    """

    def __init__(self, options: TableOptions[Any], shape: Shape, facts: CatalogFacts) -> None:
        shape = _with_schemas(shape, facts)
        self._shape = shape
        self._facts = facts
        self._can_retry = options.max_num_retries > 0
        self.waiting_indexes = facts.waiting_indexes(shape, retries=self._can_retry)
        self._view_alias = quote_(shape.view_label)
        self._types = {name: column.type for name in shape.columns if (column := facts.column(shape, name))}
        record = PostgresWriter(shape, "r")
        order = PostgresWriter(shape, "o")
        record_list = record.record(select_expressions(options, shape, tuple(facts.view_columns)))
        self._order = order.order(order_of(options, shape))
        self.values = record.values
        """The parameters of ``read``."""
        self.order_values = order.values
        """The parameters of ``order``."""
        self._fillings = self._name_fillings() | self._guard_fillings()
        self._fillings |= self._time_fillings(options) | self._optional_fillings()
        self._fillings |= {"record": record_list, "order": self._order, "shown": self._record_columns()}
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
        if self._names_table(record_list):
            self.statements["read"] = fill(self._texts["read_beside"], self._fillings).encode()

    def claim(
        self,
        conditions: Sequence[Any],
        *,
        suspects: bool,
        passing: bool = False,
        name: str = "claim",
    ) -> tuple[bytes, dict[str, object]]:
        """Return the statement ``name``, and its values: ``claim`` picks and marks records, ``pick`` only picks them.

        ``suspects``: pick only suspects; otherwise pick no suspect. ``passing``: skip the records whose keys are in the
        parameter ``passed``.
        """
        row_conditions, joint_conditions = split_conditions(conditions)
        writer = PostgresWriter(self._shape, "c")
        text = writer.conditions(row_conditions)
        bounds = writer.bounds(joint_conditions)
        resets = self._locked_column("num_resets", "0")
        comparison = ">=" if suspects else "<"
        suspicion = f" and {resets} {comparison} {MIN_SUSPECT_RESETS}"
        if passing:
            id_type = self._fillings["id_type"]
            suspicion += f" and {self._locked_column('id')} <> all(%(passed)s::text[]::{id_type}[])"
        source = self._source(self._order + text + bounds.costs, locked=True)
        fillings = {"source": source, "conditions": text, "suspicion": suspicion, "costs": bounds.costs}
        numbered = "numbered_within" if joint_conditions else "numbered"
        fillings["numbered"] = fill(self._texts[numbered], {"totals": bounds.totals, "within": bounds.condition})
        return fill(self._texts[name], self._fillings | fillings).encode(), self.order_values | writer.values

    def counting(self, name: str, conditions: Sequence[Any]) -> tuple[bytes, dict[str, object]]:
        """Return the statement ``count`` or ``exists``, and its values."""
        writer = PostgresWriter(self._shape, "c")
        text = writer.conditions(conditions)
        counted = self._source(text, locked=self._shape.viewed and not self._is_in_view("state"))
        fillings = self._fillings | {"counted": counted, "conditions": text}
        return fill(self._texts[name], fillings).encode(), writer.values

    # -- parts -----------------------------------------------------------------------------------

    def _source(self, text: str, *, locked: bool) -> str:
        """Return the FROM clause for a statement with these expressions.

        It names the view. It joins the table if the text names the table, and once more, with names of our own, if
        ``locked``. Without a view it names the table.
        """
        shape = self._shape
        source = plain(shape.view.labelled())
        if not shape.viewed:
            return source
        own_id = f"{self._view_alias}.{plain(shape['id'])}"
        if self._names_table(text):
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

    def _names_table(self, text: str) -> bool:
        """Return whether the text names the table by an alias that is not the view's."""
        table, view = self._shape.table.label, self._shape.view.label
        has_own_alias = self._shape.viewed and table.lower() != view.lower()
        return has_own_alias and names_relation(table, text)

    def _locked_column(self, name: str, default: str | None = None) -> str:
        """Return a column of the locked relation. ``default`` replaces NULL, if the column may have it."""
        if self._shape.viewed:
            column = f"{OWN_ALIAS}.stowhand_{name}"
        else:
            column = f"{self._view_alias}.{plain(self._shape[name])}"
        facts = self._facts.column(self._shape, name)
        is_never_null = facts is not None and facts.filled
        if default is None or is_never_null:
            return column
        return f"coalesce({column}, {default})"

    def _is_in_view(self, name: str) -> bool:
        """Return whether the view has the table's column."""
        return self._shape.columns[name] in self._facts.view_columns

    def _has_zone(self, name: str) -> bool:
        """Return whether the column's times have a time zone."""
        column_type = self._types.get(name, "")
        return column_type.startswith("timestamp") and "without time zone" not in column_type

    def _in_column_type(self, name: str, moment: str) -> str:
        """Return the SQL that converts a timestamp with time zone for the column: without a zone, it holds UTC."""
        return moment if self._has_zone(name) else f"(({moment}) at time zone 'UTC')"

    def _as_timestamptz(self, name: str) -> str:
        """Return the SQL that reads the column as a timestamp with time zone; NULL if the table lacks the column."""
        if not self._shape.has(name):
            return "null::timestamptz"
        column = f"j.{plain(self._shape[name])}"
        return column if self._has_zone(name) else f"({column} at time zone 'UTC')"

    def _record_columns(self) -> str:
        """Return the columns of a displayed record, in the order of ``records.RECORD_FIELDS``."""
        guards = self._guard_fillings()
        fields = {"cancel": guards["cancel"], "worker_hostname": guards["bare"]}
        for name in TIME_COLUMNS:
            fields[name] = self._as_timestamptz(name)
        for name in ("id", "state", "failure_message"):
            fields[name] = f"j.{plain(self._shape[name])}::text"
        for name in ("num_failures", "num_resets"):
            fields[name] = f"coalesce(j.{plain(self._shape[name])}, 0)"
        return ", ".join(fields[name] for name in RECORD_FIELDS)

    # -- fillings --------------------------------------------------------------------------------

    def _name_fillings(self) -> dict[str, str]:
        """Return the names and types of columns and relations."""
        shape = self._shape
        names = {name: plain(shape[name]) for name in shape.columns}
        seen = ""
        if shape.viewed:
            seen = (
                f" and exists (select from {plain(shape.view.quoted)} as stowhand_seen"
                f" where stowhand_seen.{names['id']} = j.{names['id']})"
            )
        if self._is_in_view("state"):
            counted_state = f"{self._view_alias}.{names['state']}"
        else:
            counted_state = self._locked_column("state")
        return names | {
            "table": plain(shape.table.quoted),
            "table_text": plain(quote_text(shape.table.quoted)),
            "locked": OWN_ALIAS if shape.viewed else self._view_alias,
            "view": plain(shape.view.labelled()),
            "view_id": f"{self._view_alias}.{names['id']}",
            "beside": plain(shape.table.labelled()),
            "beside_id": f"{quote_(shape.table.label)}.{names['id']}",
            "key": f"j.{names['id']}::text",
            # Ids are passed as bigint, because an ALTER TABLE may widen an integer while workers run.
            "id_type": "bigint" if self._types["id"] in INTEGER_TYPES else self._types["id"],
            "message_type": self._types["failure_message"],
            "state_type": self._types["state"],
            "log_type": self._types["execution_logs"].removesuffix("[]"),
            "p_id": self._locked_column("id"),
            "seen": seen,
            "c_state": counted_state,
        }

    def _guard_fillings(self) -> dict[str, str]:
        """Return the conditions by which a write recognizes the record of its claim; statements.sql explains them."""
        shape = self._shape
        mark = f"j.{plain(shape['worker_hostname'])}"
        state = f"j.{plain(shape['state'])}"
        if TOKEN_COLUMN in shape.columns:
            token, token_type = f"j.{plain(shape[TOKEN_COLUMN])}", self._types[TOKEN_COLUMN]
            has_token = f"{token} = g.token::{token_type}"
            signed = f"{token} is not distinct from %(token)s::text::{token_type}"
            bare = mark
        else:
            has_token = f"right({mark}, 37) = '/' || g.token"
            signed = f"{mark} is not distinct from %(mark)s"
            bare = f"regexp_replace({mark}, {_MARK_PATTERN}, '')"
        ours = f"coalesce({has_token} and {self._epoch()} = g.epoch, false)"
        # Rows are found by their ids. The expression `|| ''` keeps the planner from an index on the state. Such an
        # index has a dead entry for each record that was in processing since the last vacuum, and every settlement
        # would read them all.
        held = f"({state}::text || '' = 'processing' and {ours})"
        cancel = f"coalesce(j.{plain(shape['cancel'])}, false)" if shape.has("cancel") else "false"
        return {
            "held": held,
            "ours": ours,
            "marked": f"({has_token})",
            "bare": bare,
            "cancel": cancel,
            "signed": signed,
        }

    def _epoch(self) -> str:
        """Return the SQL that distinguishes a claim from a later one with the same token: its start in microseconds.

        In a column of whole seconds, the next claim may have the same start. Then the number of resets is added.
        """
        started = f"(extract(epoch from {self._as_timestamptz('started_at')}) * 1000000)::bigint"
        if not COARSE_TYPE.search(self._types["started_at"]):
            return started
        return f"({started} + least(coalesce(j.{plain(self._shape['num_resets'])}, 0), {MAX_RESETS_IN_EPOCH}))"

    def _optional_fillings(self) -> dict[str, str]:
        """Return the assignments to optional columns, which are empty if the table lacks the column.

        The columns are the token, the cancellation request, and the time of queueing.
        """
        shape = self._shape
        token_names = ("take_token", "leave_token", "drop_token")
        cancel_names = ("uncancel", "ask_cancel", "cancelable")
        queue_names = ("queue_up", "queue_up_unless_canceled")
        fillings = dict.fromkeys((*token_names, *cancel_names, *queue_names), "")
        if TOKEN_COLUMN in shape.columns:
            token = plain(shape[TOKEN_COLUMN])
            cancel = self._guard_fillings()["cancel"]
            taken = f"%(token)s::text::{self._types[TOKEN_COLUMN]}"
            fillings["take_token"] = f",\n  {token} = case when {cancel} then j.{token} else {taken} end"
            fillings["leave_token"] = f",\n  {token} = case when l.state <> 'queued' then j.{token} end"
            fillings["drop_token"] = f",\n  {token} = null"
        if shape.has("cancel"):
            cancel_column = plain(shape["cancel"])
            fillings["uncancel"] = f",\n  {cancel_column} = false"
            fillings["ask_cancel"] = f",\n  {cancel_column} = true"
            fillings["cancelable"] = ", 'processing'"
        if shape.has("queued_at"):
            queued = plain(shape["queued_at"])
            now = self._in_column_type("queued_at", _NOW_EXPRESSION)
            fillings["queue_up"] = f",\n  {queued} = case when l.state = 'queued' then {now} else j.{queued} end"
            fillings["queue_up_unless_canceled"] = (
                f",\n  {queued} = case when l.canceled then j.{queued} else {now} end"
            )
        return fillings

    def _time_fillings(self, options: TableOptions[Any]) -> dict[str, str]:
        """Return the times, and the conditions on them. ``started_now`` writes a time, ``started_read`` reads it."""
        short_names = {
            name: name.removesuffix("_at").removesuffix("_after").replace("last_heartbeat", "beat")
            for name in TIME_COLUMNS
        }
        fillings = {
            f"{short_names[name]}_now": self._in_column_type(name, _NOW_EXPRESSION)
            for name in TIME_COLUMNS
            if self._shape.has(name)
        }
        fillings |= {f"{short_names[name]}_read": self._as_timestamptz(name) for name in TIME_COLUMNS}
        stale_before = f"{_NOW_EXPRESSION} - (%(stalled)s::float8 + %(slack)s::float8) * interval '1 second'"
        # Every claim writes a heartbeat. A row without one was not claimed by a worker but by the application itself.
        # Its comparison is NULL, so it is never stale.
        heartbeat = f"j.{plain(self._shape['last_heartbeat_at'])}"
        fillings["stale"] = f"{heartbeat} < {self._in_column_type('last_heartbeat_at', stale_before)}"
        after_delay = f"{_NOW_EXPRESSION} + %(delay)s::float8 * interval '1 second'"
        fillings["after"] = self._in_column_type("process_after", f"coalesce(%(after)s::timestamptz, {after_delay})")
        retry_after = f"interval '{round(options.retry_delay * 1e6)} microseconds'"
        fillings["now"] = _NOW_EXPRESSION
        fillings["retry_after"] = retry_after
        fillings["retries"] = "true" if self._can_retry else "false"
        fillings["epoch"] = self._epoch()
        fillings["eligible"] = self._eligible_condition(retry_after)
        return fillings

    def _eligible_condition(self, retry_after: str) -> str:
        """Return the condition that a record waits and is due.

        It is a condition on the locked row. If the view has the state too, the condition is repeated on it: otherwise a
        claim could not use an index through the view.
        """
        state = self._locked_column("state")
        due = self._locked_column("process_after")
        finished = self._locked_column("finished_at")
        states = "in ('queued', 'errored')" if self._can_retry else "= 'queued'"
        now = self._in_column_type("process_after", _NOW_EXPRESSION)
        condition = f"{state} {states} and ({due} is null or {due} <= {now})"
        if self._can_retry:
            finished_before = self._in_column_type("finished_at", f"{_NOW_EXPRESSION} - {retry_after}")
            condition += f"\n    and ({state} = 'queued' or {finished} is null or {finished} <= {finished_before})"
        if self._shape.viewed and self._is_in_view("state"):
            condition += f"\n    and {self._view_alias}.{plain(self._shape['state'])} {states}"
        return f"{condition}\n    and {self._locked_column('id')} is not null"


def _with_schemas(shape: Shape, facts: CatalogFacts) -> Shape:
    """Return the shape with the schemas of the catalog. A temporary table would hide a name without a schema."""
    return replace(
        shape, table=replace(shape.table, schema=facts.schema), view=replace(shape.view, schema=facts.view_schema)
    )


class _KeepPlaceholders(dict[str, str]):
    """Fillings that keep every {placeholder}, for texts that are filled in later."""

    def __missing__(self, name: str) -> str:
        return f"{{{name}}}"
