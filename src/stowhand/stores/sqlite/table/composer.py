"""Composes the statements that contain a user's names; values are always parameters.

The texts are in statements.sql, with placeholders for names and for the parts that depend on the table: its columns,
its format of times, the place of the claim's token. Statements with the user's own expressions and conditions are
composed in user_sql.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from stowhand.stores.database.statements import load_statements
from stowhand.stores.sqlite.table.timestamps import MICROS_PER_SECOND, TimeFormat, kind_of
from stowhand.stores.table.backend import MAX_RESETS_IN_EPOCH
from stowhand.stores.table.names import TIME_COLUMNS, TOKEN_COLUMN, Shape, quote
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import RECORD_FIELDS

TOKEN_PATTERN = "/????????-????-????-????-????????????"
"""The end of a mark that contains a token (GLOB)."""
OWN_TEXT_PATTERN = "????-??-?? ??:??:??.[0-9][0-9][0-9][0-9][0-9][0-9]"
"""The format of times written here (GLOB): such texts compare as the times do."""

_STATEMENTS_FILE = files(__package__).joinpath("statements.sql")

Kinds = Mapping[str, TimeFormat]


def compose(shape: Shape, options: TableOptions[Any], kinds: Kinds) -> dict[str, str]:
    """Return a table's statements that need only names. ``kinds``: by documented name, the column's time format."""
    fillings = _fillings(shape, options, kinds)
    key, row = quote(shape.columns["id"]), quote(shape.table.name)
    seen = f" AND EXISTS (SELECT 1 FROM {shape.view.quoted} AS stowhand_seen WHERE stowhand_seen.{key} = {row}.{key})"
    fillings["seen"] = seen if shape.viewed else ""
    return {name: text.decode() for name, text in load_statements(_STATEMENTS_FILE, fillings).items()}


def kinds_of(shape: Shape, declared: Mapping[str, str]) -> dict[str, TimeFormat]:
    """Return the time formats by the declared types of the table's columns. Names ignore case, as in SQLite."""
    types = {name.lower(): kind for name, kind in declared.items()}
    return {name: kind_of(types.get(shape.columns[name].lower(), "")) for name in TIME_COLUMNS}


def is_true(cancel: str) -> str:
    """Return the condition that ``cancel`` is set: a number except 0, or a word except those for false."""
    return f"(coalesce({cancel}, 0) <> 0 AND lower({cancel}) NOT IN ('', '0', 'f', 'false', 'n', 'no'))"


def is_not_after(moment: str, bound: str) -> str:
    """Return the condition that a time is not after the parameter ``bound``. Our own format compares fast, as text."""
    return (
        f"CASE WHEN typeof({moment}) = 'text' AND {moment} GLOB '{OWN_TEXT_PATTERN}'"
        f" THEN {moment} <= :{bound}_text ELSE stowhand_micros({moment}) <= :{bound} END"
    )


def _fillings(shape: Shape, options: TableOptions[Any], kinds: Kinds) -> dict[str, str]:
    row = quote(shape.table.name)
    columns = {name: quote(own) for name, own in shape.columns.items()}
    own_columns = {name: f"{row}.{column}" for name, column in columns.items()}
    now = {f"now_{name}": f":now_{kinds[name]}" for name in TIME_COLUMNS}
    queued_at = shape.has("queued_at")
    retried = f"stowhand_micros({own_columns['finished_at']}) + {round(options.retry_delay * MICROS_PER_SECOND)}"
    fence = _fence(own_columns, columns, _epoch(own_columns, kinds))
    canceled = is_true(own_columns["cancel"]) if shape.has("cancel") else "0"
    values = {
        "id": own_columns["id"],
        "state": own_columns["state"],
        "failure_message": own_columns["failure_message"],
        "cancel": canceled,
    }
    values |= {name: f"coalesce({own_columns[name]}, 0)" for name in ("num_failures", "num_resets")}
    values |= {name: f"stowhand_micros({own_columns[name]})" if shape.has(name) else "NULL" for name in TIME_COLUMNS}
    values["worker_hostname"] = fence["worker"]
    return {
        **columns,
        **now,
        "shown": ", ".join(values[name] for name in RECORD_FIELDS),
        "uncancel": f", {columns['cancel']} = 0" if shape.has("cancel") else "",
        "ask_cancel": f"{columns['cancel']} = 1" if shape.has("cancel") else f"{columns['state']} = {columns['state']}",
        **fence,
        "row": row,
        "table": shape.table.quoted,
        "cancel": canceled,
        "due_process_after": f":due_{kinds['process_after']}",
        "queued_now": f", {columns['queued_at']} = {now['now_queued_at']}" if queued_at else "",
        "queued_micros": f"stowhand_micros({own_columns['queued_at']})" if queued_at else "NULL",
        "retried": retried,
        "retries": "1" if options.max_num_retries else "0",
        "beaten": _heartbeat_time(own_columns, kinds),
        "stalled": f"{_heartbeat_time(own_columns, kinds)} < :late",
    }


def _epoch(own_columns: Mapping[str, str], kinds: Kinds) -> str:
    """Return the claim's start. In whole seconds the next claim may have the same, so add the number of resets."""
    started = f"coalesce(stowhand_micros({own_columns['started_at']}), 0)"
    if kinds["started_at"] is not TimeFormat.INTEGER:
        return started
    return f"({started} + min(coalesce({own_columns['num_resets']}, 0), {MAX_RESETS_IN_EPOCH}))"


def _fence(own_columns: Mapping[str, str], columns: Mapping[str, str], epoch: str) -> dict[str, str]:
    """Return the conditions on the claim's token, at the end of the mark or in its own column, and on its epoch.

    A program that does not know tokens does not clear an old one, so the epoch is compared too.
    """
    mark = own_columns["worker_hostname"]
    if TOKEN_COLUMN in own_columns:
        token = f"coalesce({own_columns[TOKEN_COLUMN]} = :token, 0)"
        fillings = {
            "sign": f"{columns['worker_hostname']} = :worker, {columns[TOKEN_COLUMN]} = :token",
            "strip": f"{columns[TOKEN_COLUMN]} = NULL",
            "marked": f"{own_columns[TOKEN_COLUMN]} IS NOT NULL",
            "worker": mark,
        }
    else:
        token = f"coalesce(substr({mark}, -length(:token) - 1) = '/' || :token, 0)"
        marked = f"{mark} GLOB '*{TOKEN_PATTERN}'"
        worker = f"CASE WHEN {marked} THEN substr({mark}, 1, length({mark}) - {len(TOKEN_PATTERN)}) ELSE {mark} END"
        fillings = {
            "sign": f"{columns['worker_hostname']} = :worker || '/' || :token",
            "strip": f"{columns['worker_hostname']} = {worker}",
            "marked": marked,
            "worker": worker,
        }
    running, matches = f"{own_columns['state']} = 'processing'", f"({token} AND {epoch} = :epoch)"
    guards = {"held": f"{running} AND {matches}", "held_by_token": f"{running} AND {token}"}
    return {"has_token": token, "matches": matches, "epoch": epoch, **guards, **fillings}


def _heartbeat_time(own_columns: Mapping[str, str], kinds: Kinds) -> str:
    """Return the time of the heartbeat. A whole second counts to its end."""
    beat = f"stowhand_micros({own_columns['last_heartbeat_at']})"
    return f"{beat} + {MICROS_PER_SECOND}" if kinds["last_heartbeat_at"] is TimeFormat.INTEGER else beat
