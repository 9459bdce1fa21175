"""Which ticks a scheduler makes up for that has been away."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from datetime import datetime, timedelta

from stowhand.cron.item import ParsedItem
from stowhand.protocols.queue_store import KnownItem


def plan_backfill(
    item: ParsedItem,
    known: KnownItem,
    start: datetime,
    have: Collection[datetime],
    ticks: Callable[[ParsedItem, datetime, datetime], Iterator[datetime]] = ParsedItem.ticks,
) -> Iterator[datetime]:
    """The ticks to make up for, in order: within ``fill`` before ``start``, and not yet in the ledger (``have``).

    Nothing before the latest tick that was scheduled, or, if there was none, before the item was known: what was
    never planned is never made up for. Made as they are read: a year has half a million minutes. ``ticks``: who says
    when the item is due.
    """
    if not item.fill:
        return iter(())
    done = frozenset(have)
    return (tick for tick in ticks(item, fill_from(item, known, start), start) if tick not in done)


def fill_from(item: ParsedItem, known: KnownItem, start: datetime) -> datetime:
    """The moment that a backfill reaches back to; not before ``start``: there is none."""
    return max(start - timedelta(seconds=item.fill), known.last_tick or known.known_since)
