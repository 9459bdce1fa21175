"""The minutes that a scheduler has not examined yet, by item. Pure: the time is an argument, and nothing is stored.

Each item has a cursor, the first whole minute that was not examined yet. The store's ledger records whether a tick has
become a job, so examining a minute twice is harmless.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat

from stowhand.cron.item import ParsedItem

ONE_MINUTE = timedelta(minutes=1)
MAX_CATCH_UP = timedelta(hours=24)
"""Period for which a running scheduler catches up after an outage, a sleep or a step of the clock. The item's ``fill``
decides about older ticks, as after a downtime."""
MAX_PAUSE_SECONDS = 60.0
"""Maximum time between two reads of the store's clock, which may be adjusted."""

Due = tuple[datetime, ParsedItem]
OnError = Callable[[ParsedItem, Exception], None]
"""Called when an item's own function raises; that minute is skipped. Called once if it raises for several minutes."""


class Agenda:
    """The items of one scheduler and their cursors."""

    def __init__(self, items: Iterable[ParsedItem], on_error: OnError) -> None:
        self._on_error = on_error
        self._cursors: dict[str, datetime] = {}
        self.items: tuple[ParsedItem, ...] = ()
        self.replace(items)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """Identifiers in the order of the crontab."""
        return tuple(item.identifier for item in self.items)

    def replace(self, items: Iterable[ParsedItem]) -> None:
        """Replace the items. An item that stays keeps its cursor."""
        self.items = tuple(items)
        self._cursors = {name: self._cursors[name] for name in self.identifiers if name in self._cursors}

    def start(self, minute: datetime) -> None:
        """Set the cursor of items that have none. Their ``fill`` decides about earlier ticks."""
        for name in self.identifiers:
            self._cursors.setdefault(name, minute)

    def cursor(self, item: ParsedItem) -> datetime:
        """Return the first minute of the item that was not examined."""
        return self._cursors[item.identifier]

    def back_to(self, minute: datetime) -> None:
        """Examine minutes again after the clock went back. The ledger prevents repeated jobs."""
        self._cursors = {name: min(cursor, minute) for name, cursor in self._cursors.items()}

    def done_until(self, minute: datetime) -> None:
        """Move all cursors to this minute or later: earlier ticks are in the ledger."""
        self._cursors = {name: max(cursor, minute) for name, cursor in self._cursors.items()}

    def drop_overdue(self, now: datetime) -> bool:
        """Drop ticks that are overdue by more than ``MAX_CATCH_UP``. Return whether there may have been any."""
        oldest = next_minute(now - MAX_CATCH_UP)
        is_behind = any(cursor < oldest for cursor in self._cursors.values())
        self.done_until(oldest)
        return is_behind

    def due(self, now: datetime) -> Iterator[Due]:
        """Yield ticks up to now that were not examined, in the order of time."""
        end = this_minute(now) + ONE_MINUTE
        return in_order([(item, self.ticks(item, self.cursor(item), end)) for item in self.items])

    def pause(self, now: datetime) -> float:
        """Return the seconds until a tick is due, at most ``MAX_PAUSE_SECONDS``."""
        end = now + timedelta(seconds=MAX_PAUSE_SECONDS)
        first = min((self._first(item, end) for item in self.items), default=end)
        return max((first - now).total_seconds(), 0.0)

    def _first(self, item: ParsedItem, end: datetime) -> datetime:
        """Return the item's first tick that was not examined, at most ``end``."""
        try:
            return next(item.ticks(self.cursor(item), end), end)
        except Exception:  # noqa: BLE001 - boundary: an item's own function; reported when that minute is due
            return end

    def ticks(self, item: ParsedItem, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the item's ticks; skip minutes at which its function raises, and report the first."""
        if not item.is_function:
            yield from item.ticks(start, end)
            return
        was_reported = False
        minute = next_minute(start)
        while minute < end:
            try:
                is_due = item.due(minute)
            except Exception as error:  # noqa: BLE001 - boundary: an item's own function must not stop the other items
                is_due = False
                if not was_reported:
                    self._on_error(item, error)
                was_reported = True
            if is_due:
                yield minute
            minute += ONE_MINUTE


def in_order(ticks: Sequence[tuple[ParsedItem, Iterable[datetime]]]) -> Iterator[Due]:
    """Yield the ticks of several items in the order of time, lazily.

    Ticks of one minute are ordered by identifier, so that all schedulers lock rows in the same order.
    """
    tick_streams = (zip(times, repeat(item)) for item, times in ticks)
    return heapq.merge(*tick_streams, key=lambda due: (due[0], due[1].identifier))


def this_minute(time: datetime) -> datetime:
    """Return the current whole minute."""
    return time.replace(second=0, microsecond=0)


def next_minute(time: datetime) -> datetime:
    """Return the time itself if it is a whole minute, else the next whole minute."""
    return time if time == this_minute(time) else this_minute(time) + ONE_MINUTE
