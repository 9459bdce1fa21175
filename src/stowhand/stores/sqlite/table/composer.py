"""The one place where statements are composed of a user's names; values are parameters always.

What is the same for every table is in statements.sql, with places for names and for what depends on the table: which
columns it has, how it keeps moments, where the claim's token is. What the user's own expressions and conditions are
part of is composed in user_sql.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from stowhand.stores.database.statements import load_statements
from stowhand.stores.sqlite.table.moments import SECOND, Kind, kind_of
from stowhand.stores.table.backend import MAX_RESETS_IN_EPOCH
from stowhand.stores.table.names import TIME_COLUMNS, TOKEN_COLUMN, Shape, quote
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import RECORD_FIELDS

A_TOKEN = "/????????-????-????-????-????????????"
"""A mark ends like this while its claim's token is in it (GLOB)."""
OUR_TEXT = "????-??-?? ??:??:??.[0-9][0-9][0-9][0-9][0-9][0-9]"
"""Moments as they are written here (GLOB): such texts compare as the moments do."""

_FILE = files(__package__).joinpath("statements.sql")

Kinds = Mapping[str, Kind]


def compose(shape: Shape, options: TableOptions[Any], kinds: Kinds) -> dict[str, str]:
    """All that needs nothing but names, for one table. ``kinds``: documented name -> how that column keeps moments."""
    places = _places(shape, options, kinds)
    key, row = quote(shape.columns["id"]), quote(shape.table.name)
    seen = f" AND EXISTS (SELECT 1 FROM {shape.view.quoted} AS stowhand_seen WHERE stowhand_seen.{key} = {row}.{key})"
    places["seen"] = seen if shape.viewed else ""
    return {name: text.decode() for name, text in load_statements(_FILE, places).items()}


def kinds_of(shape: Shape, declared: Mapping[str, str]) -> dict[str, Kind]:
    """By the declared types of the table's columns; names as SQLite compares them, whatever their case."""
    types = {name.lower(): kind for name, kind in declared.items()}
    return {name: kind_of(types.get(shape.columns[name].lower(), "")) for name in TIME_COLUMNS}


def truth(cancel: str) -> str:
    """``cancel`` is set: a number that is not 0, or a word that is not one of false."""
    return f"(coalesce({cancel}, 0) <> 0 AND lower({cancel}) NOT IN ('', '0', 'f', 'false', 'n', 'no'))"


def reached(moment: str, bound: str) -> str:
    """That moment is not after the parameter ``bound``. What we wrote ourselves is compared unchanged: fast."""
    return (
        f"CASE WHEN typeof({moment}) = 'text' AND {moment} GLOB '{OUR_TEXT}'"
        f" THEN {moment} <= :{bound}_text ELSE stowhand_micros({moment}) <= :{bound} END"
    )


def _places(shape: Shape, options: TableOptions[Any], kinds: Kinds) -> dict[str, str]:
    row = quote(shape.table.name)
    columns = {name: quote(own) for name, own in shape.columns.items()}
    of = {name: f"{row}.{column}" for name, column in columns.items()}
    now = {f"now_{name}": f":now_{kinds[name]}" for name in TIME_COLUMNS}
    queued_at = shape.has("queued_at")
    retried = f"stowhand_micros({of['finished_at']}) + {round(options.retry_delay * SECOND)}"
    fence = _fence(of, columns, _epoch(of, kinds))
    canceled = truth(of["cancel"]) if shape.has("cancel") else "0"
    values = {"id": of["id"], "state": of["state"], "failure_message": of["failure_message"], "cancel": canceled}
    values |= {name: f"coalesce({of[name]}, 0)" for name in ("num_failures", "num_resets")}
    values |= {name: f"stowhand_micros({of[name]})" if shape.has(name) else "NULL" for name in TIME_COLUMNS}
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
        "queued_micros": f"stowhand_micros({of['queued_at']})" if queued_at else "NULL",
        "retried": retried,
        "retries": "1" if options.max_num_retries else "0",
        "beaten": _beaten(of, kinds),
        "stalled": f"{_beaten(of, kinds)} < :late",
    }


def _epoch(of: Mapping[str, str], kinds: Kinds) -> str:
    """When the claim began; whole seconds may be the next one's too, whose reset has counted by then."""
    began = f"coalesce(stowhand_micros({of['started_at']}), 0)"
    if kinds["started_at"] is not Kind.INTEGER:
        return began
    return f"({began} + min(coalesce({of['num_resets']}, 0), {MAX_RESETS_IN_EPOCH}))"


def _fence(of: Mapping[str, str], columns: Mapping[str, str], epoch: str) -> dict[str, str]:
    """Where the claim's token is: at the end of the mark, or in a column of its own. And its epoch beside it: a
    program that knows nothing of tokens does not clear an old one."""
    mark = of["worker_hostname"]
    if TOKEN_COLUMN in of:
        token = f"coalesce({of[TOKEN_COLUMN]} = :token, 0)"
        places = {
            "sign": f"{columns['worker_hostname']} = :worker, {columns[TOKEN_COLUMN]} = :token",
            "strip": f"{columns[TOKEN_COLUMN]} = NULL",
            "marked": f"{of[TOKEN_COLUMN]} IS NOT NULL",
            "worker": mark,
        }
    else:
        token = f"coalesce(substr({mark}, -length(:token) - 1) = '/' || :token, 0)"
        marked = f"{mark} GLOB '*{A_TOKEN}'"
        worker = f"CASE WHEN {marked} THEN substr({mark}, 1, length({mark}) - {len(A_TOKEN)}) ELSE {mark} END"
        places = {
            "sign": f"{columns['worker_hostname']} = :worker || '/' || :token",
            "strip": f"{columns['worker_hostname']} = {worker}",
            "marked": marked,
            "worker": worker,
        }
    running, matches = f"{of['state']} = 'processing'", f"({token} AND {epoch} = :epoch)"
    held = {"held": f"{running} AND {matches}", "held_by_token": f"{running} AND {token}"}
    return {"has_token": token, "matches": matches, "epoch": epoch, **held, **places}


def _beaten(of: Mapping[str, str], kinds: Kinds) -> str:
    """When the heartbeat was. A whole second counts to its end."""
    beat = f"stowhand_micros({of['last_heartbeat_at']})"
    return f"{beat} + {SECOND}" if kinds["last_heartbeat_at"] is Kind.INTEGER else beat
