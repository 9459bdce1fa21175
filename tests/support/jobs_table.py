"""A table of an application's own that a worker may work on, with the columns of the documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Dialect = Literal["postgres", "sqlite"]

KEYS = {"postgres": "bigserial primary key", "sqlite": "integer primary key"}
MOMENTS = {"postgres": "timestamptz", "sqlite": "timestamp"}
LOGS = {"postgres": "json[]", "sqlite": "text"}
NOWS = {"postgres": "now()", "sqlite": "current_timestamp"}


def jobs_table(
    name: str,
    *own: str,
    dialect: Dialect = "postgres",
    moment: str | None = None,
    **definitions: str,
) -> str:
    """The statement that creates it, without a semicolon.

    `own`: columns of the application's. `moment`: the type of moments. `definitions`: of columns, by name, in place of
    the usual ones; `id` is one of them.
    """
    of_jobs = columns(dialect, moment or MOMENTS[dialect], {"id": KEYS[dialect]} | definitions)
    return f"create table {name} (\n" + ",\n".join([of_jobs, *(f"  {column}" for column in own)]) + "\n)"


def columns(
    dialect: Dialect = "postgres", moment: str = MOMENTS["postgres"], definitions: Mapping[str, str] | None = None
) -> str:
    """The definitions of its columns, one a line; of `id` only a given one."""
    usual = {
        "state": "text not null default 'queued'",
        "failure_message": "text",
        "queued_at": f"{moment} default {NOWS[dialect]}",
        "started_at": moment,
        "finished_at": moment,
        "process_after": moment,
        "num_resets": "integer not null default 0",
        "num_failures": "integer not null default 0",
        "last_heartbeat_at": moment,
        "execution_logs": LOGS[dialect],
        "worker_hostname": "text not null default ''",
        "cancel": "boolean not null default false",
    }
    options = dict(definitions or {})
    return ",\n".join(f"  {name} {text}" for name, text in (options | usual | options).items())
