"""The known items of a store: unscheduled ones, and ones that missed a tick."""

from __future__ import annotations

from datetime import datetime, timedelta

from stowhand.cron.crontab import parse_crontab
from stowhand.cron.item import ParsedItem
from stowhand.errors import ConfigurationError
from stowhand.protocols.counts import CronFigures
from stowhand.protocols.queue_store import KnownItem, Timetable

MAX_DELAY = timedelta(minutes=2)
"""A tick that is not in the ledger this long after its minute is missed."""
MISSED_TICK_PERIOD = timedelta(days=1)
"""Time for which a missed tick is shown, unless the item ticks again before."""


async def cron_figures(timetable: Timetable) -> CronFigures:
    """Return the items that a store knows, and their problems."""
    items, now = await timetable.known_items(), await timetable.now()
    return CronFigures(
        known=tuple(item.identifier for item in items),
        unscheduled=tuple(item.identifier for item in items if not item.is_scheduled(now)),
        missed={item.identifier: at for item in items if (at := missed_tick(item, now)) is not None},
    )


def missed_tick(item: KnownItem, now: datetime) -> datetime | None:
    """Return the first tick of the last day that should have made a job by now and has not.

    Ticks before the item was known, before its last one, and before its spec changed do not count. An item written as
    a Python function misses none: only its own process knows when it is due.
    """
    parsed = item_of_spec(item.spec)
    if parsed is None:
        return None
    times = (now - MISSED_TICK_PERIOD, item.known_since, item.last_tick, item.spec_since)
    tick = parsed.next_after(max(time for time in times if time is not None))
    return tick if tick is not None and tick <= now - MAX_DELAY else None


def item_of_spec(spec: str) -> ParsedItem | None:
    """Return the item; ``None`` for a spec that no crontab can contain: a function, or a text of another version."""
    try:
        (item,) = parse_crontab(spec)
    except (ConfigurationError, ValueError):
        return None
    return item
