"""What the doctor asks a PostgreSQL server: its version, its clock, and how many connections it has left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from stowhand.app.settings.settings import WorkerSettings
from stowhand.cli.findings import Finding, fail, ok, warn
from stowhand.clock import wall_clock
from stowhand.service.exit_codes import STORE_UNREACHABLE, USAGE

OLDEST = 13
SKEW_LIMIT = 1.0
"""Seconds."""
# What a login that is no superuser may have: a database and a role may allow fewer than the server. Connections of ours
# are those of workers that a new start replaces, or of other hosts: they are named apart.
_LOOK = b"""
    SELECT current_setting('server_version_num')::int,
           clock_timestamp(),
           least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
                     - coalesce(current_setting('reserved_connections', true)::int, 0),
                 (SELECT nullif(datconnlimit, -1) FROM pg_database WHERE datname = current_database()),
                 (SELECT nullif(rolconnlimit, -1) FROM pg_roles WHERE rolname = current_user)),
           count(*) FILTER (WHERE application_name NOT LIKE 'stowhand:%%' AND pid <> pg_backend_pid())::int,
           count(*) FILTER (WHERE application_name LIKE 'stowhand:%%')::int,
           current_setting('transaction_read_only')::bool,
           current_setting('array_nulls')::bool
    FROM pg_stat_activity
    WHERE backend_type = 'client backend'
"""
PARENT = 3
"""Connections of the parent of several processes: to schedule, to look, to take back what a dead child held."""


class Server(msgspec.Struct, frozen=True):
    """One look at a server. ``skew``: seconds that its clock is ahead of ours. ``most``: connections that it gives.

    ``used``: those of others than us; ``ours``: those of workers.
    """

    version: int
    skew: float
    most: int
    used: int
    ours: int = 0
    read_only: bool = False
    nulls: bool = True
    """Does an array's literal know NULL?"""


async def examine_server(settings: WorkerSettings) -> Iterator[Finding]:
    """One short query. Raises StoreUnreachable."""
    return judge_server(await _look(settings.store.url), settings)


def judge_server(server: Server, settings: WorkerSettings) -> Iterator[Finding]:
    """What to say about it."""
    major = server.version // 10_000
    if major < OLDEST:
        yield warn("server", f"PostgreSQL {major}; {OLDEST} is the oldest that is tried")
    else:
        yield ok("server", f"PostgreSQL {major}")
    if server.read_only:
        said = "a standby, or read-only: nothing can be enqueued or claimed; name the primary, or several hosts with"
        yield fail("writes", f"{said} target_session_attrs=read-write", STORE_UNREACHABLE)
    if not server.nulls:
        yield fail("arrays", "array_nulls is off: settlements would fail; ALTER ROLE … SET array_nulls = on", USAGE)
    if abs(server.skew) > SKEW_LIMIT:
        word = "ahead of" if server.skew > 0 else "behind"
        yield warn("clock", f"the server's is {abs(server.skew):.1f} s {word} this machine's; jobs run by the server's")
    else:
        yield ok("clock", "the server's and this machine's agree")
    processes, each = settings.processes, settings.store.max_pool_size
    parent = PARENT if processes > 1 else 0
    wanted = processes * each + parent
    added = f"{processes} x {each}{f' + {parent} of their parent' if parent else ''} = {wanted} at most"
    said = f"{added}; the server gives {server.most}, of which others use {server.used} and workers {server.ours}"
    if wanted > server.most - server.used:
        yield warn("connections", f"{said}: lower -j, -m or --processes, or raise max_connections")
    else:
        yield ok("connections", said)


async def _look(url: str) -> Server:
    from stowhand.errors import StoreError
    from stowhand.stores.database.address import Address
    from stowhand.stores.database.link import Dialer, Link
    from stowhand.stores.database.trouble import first_line

    link = Link(Dialer(Address(url), prepared=False), lambda: "stowhand doctor")
    try:
        before = wall_clock()
        ((version, now, *facts),) = await link.rows(_LOOK)
        return Server(version, _ahead(now, before, wall_clock()), *facts)
    except StoreError:
        raise
    except Exception as error:  # noqa: BLE001  boundary: a driver's error becomes one of ours
        raise StoreError(first_line(error)) from None
    finally:
        await link.close()


def _ahead(theirs: datetime, before: datetime, after: datetime) -> float:
    """The answer was made at some moment between the two; the middle is the best guess."""
    return (theirs - before).total_seconds() - (after - before).total_seconds() / 2
