"""An item of a crontab, its due times, and the job of one tick."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from stowhand.cron.fields import MINUTES_PER_DAY, Calendar
from stowhand.cron.zones import FIRST_MINUTE, LAST_MINUTE, Zone, to_minute, to_time
from stowhand.errors import a_type
from stowhand.jobs import strict_json
from stowhand.jobs.durations import Duration
from stowhand.jobs.job import NewJob
from stowhand.jobs.option_struct import SuggestingMeta

HORIZON_MINUTES = 40 * 366 * MINUTES_PER_DAY
"""Period in which ``next_after`` searches."""
FUNCTION_HORIZON_MINUTES = 8 * MINUTES_PER_DAY
"""Period in which ``next_after`` searches if ``match`` is a function, which is called for every minute."""


class CronDate(msgspec.Struct, frozen=True):
    """A minute in the item's time zone: the argument of a ``match`` function."""

    minute: int
    hour: int
    day: int
    month: int
    weekday: int
    """0 is Sunday."""
    at: datetime
    """Aware, in the item's time zone."""


Match = Callable[[CronDate], bool]


class CronOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """Options of an item. ``None`` means the default of any job."""

    backfill_period: Duration = 0
    """Period in which missed ticks are backfilled at start; at most 366 days, rounded up to seconds."""
    max_attempts: int | None = None
    queue_name: str | None = None
    """The serial key: jobs of one serial key run one after another."""
    work_queue: str | None = None
    """The queue, by which workers select jobs. ``None`` means the queue that the task declares."""
    priority: int | None = None
    """Jobs with a smaller number run first."""
    job_key: str | None = None
    job_key_mode: str | None = None
    """``replace`` or ``preserve_run_at``; only with a ``job_key``."""


class CronItem(msgspec.Struct, frozen=True, kw_only=True, metaclass=SuggestingMeta):
    """A recurring job, declared in Python. `parse_cron_items` checks it."""

    task: str
    match: str | Match | None = None
    """Five fields as in a crontab, or a function of a CronDate that is called for every minute."""
    pattern: str | Match | None = None
    """Alias of ``match``. Exactly one of them must be set."""
    identifier: str | None = None
    """Permanent name; by default the task's name. Required if a task recurs in several ways."""
    payload: object = None
    """A dict, or a value that becomes a JSON object. The payload of the jobs also has ``_cron``."""
    options: CronOptions = CronOptions()
    tz: str | None = None
    """Time zone of ``match``, such as Europe/Berlin; by default UTC."""


class ParsedItem(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A checked item. Only `parse_crontab` and `parse_cron_items` make one.

    A due time of an item is a *tick*: an aware datetime in UTC, a whole minute.
    """

    identifier: str
    fill: float
    """Seconds."""
    spec: str
    """The whole item on one line in normalized form: equal items have equal specs, however they were written."""
    payload: dict[str, object]
    """Payload without ``_cron``."""
    options: CronOptions
    """Options as declared; ``None`` means the default."""
    position: str
    """Position of the item in its source, for messages: ``crontab line 3``."""
    _when: Calendar | Match
    _every_hour: bool
    _zone: Zone
    _job: NewJob
    """The job without its payload."""
    _add_job_rules: Callable[[NewJob], NewJob] | None = None
    """``TaskDefinition.with_job_rules`` of its task."""

    def __repr__(self) -> str:
        return f"<ParsedItem {self.spec}>"

    @property
    def task(self) -> str:
        """Task of its jobs."""
        return self._job.task

    @property
    def tz(self) -> str:
        """The name of its time zone."""
        return self._zone.name

    @property
    def is_function(self) -> bool:
        """Whether a function, which may raise anything, decides about every minute."""
        return not isinstance(self._when, Calendar)

    def due(self, at: datetime) -> bool:
        """Return whether it is due in the minute of ``at``."""
        minute = to_minute(at)
        return FIRST_MINUTE < minute < LAST_MINUTE and self._next(minute, minute + 1) == minute

    def next_after(self, at: datetime) -> datetime | None:
        """Return the first tick after the minute of ``at``.

        ``None`` means no tick within 40 years; if ``match`` is a function, within 8 days.
        """
        start = max(to_minute(at), FIRST_MINUTE) + 1
        minute = self._next(start, start + (FUNCTION_HORIZON_MINUTES if self.is_function else HORIZON_MINUTES))
        return None if minute is None else to_time(minute)

    def ticks(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield all ticks from ``start`` on and before ``end``, in order."""
        minute, stop = max(_minute_from(start), FIRST_MINUTE + 1), _minute_from(end)
        while (tick := self._next(minute, stop)) is not None:
            yield to_time(tick)
            minute = tick + 1

    def with_job_rules(self, add_job_rules: Callable[[NewJob], NewJob], template: NewJob) -> ParsedItem:
        """Return the item with the rules of its task for each job. Raises InvalidJob if the task rejects them.

        ``template``: a job with the task's options, which supplies the expiry and the queue.
        """
        queue = self.options.work_queue or template.queue
        job = msgspec.structs.replace(self._job, expires=template.expires, queue=queue)
        item = msgspec.structs.replace(self, _add_job_rules=add_job_rules, _job=job)
        item.job(to_time(FIRST_MINUTE + 1), backfilled=False)
        return item

    def declared(self, template: NewJob) -> ParsedItem:
        """Return the item with the options of the task's template that the item does not set."""
        item_options = self.options
        values = {
            "serial": item_options.queue_name,
            "queue": item_options.work_queue,
            "priority": item_options.priority,
            "max_attempts": item_options.max_attempts,
        }
        changes: dict[str, object] = {name: value for name, value in values.items() if value is not None}
        if item_options.job_key is not None:
            changes |= {"key": self._job.key, "key_mode": self._job.key_mode}
        return msgspec.structs.replace(self, _job=msgspec.structs.replace(template, delay=None, **changes))

    def job(self, at: datetime, *, backfilled: bool) -> NewJob:
        """Return the job of a tick. Parsing has checked its options and the size of its payload."""
        stamp = at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        payload = {**self.payload, "_cron": {"ts": stamp, "backfilled": backfilled}}
        job = msgspec.structs.replace(self._job, payload=strict_json.encode(payload), run_at=at)
        return job if self._add_job_rules is None else self._add_job_rules(job)

    def _next(self, start: int, stop: int) -> int | None:
        """Return the first real minute at which it is due, from ``start`` on and before ``stop``."""
        stop = min(stop, LAST_MINUTE)
        if start >= stop:
            return None
        if not isinstance(self._when, Calendar):
            return next((minute for minute in range(start, stop) if self._is_due_by(self._when, minute)), None)
        return self._recurring(self._when, start, stop) if self._every_hour else self._once(self._when, start, stop)

    def _recurring(self, calendar: Calendar, start: int, stop: int) -> int | None:
        """Return the next real minute whose local time matches, for unrestricted hours. Skips skipped local times."""
        for span in self._zone.spans(start):
            if span.start >= stop:
                return None
            before = min(span.stop, stop) + span.offset
            wall = calendar.next(max(span.start, start) + span.offset, before)
            if wall is not None:
                return wall - span.offset
        return None

    def _once(self, calendar: Calendar, start: int, stop: int) -> int | None:
        """Return the next time of the day, which is due once, when the local clock first shows or skips it."""
        zone = self._zone
        shown = zone.latest_wall(start - 1)
        wall = calendar.next(shown + 1, zone.latest_wall(stop - 1) + 1)
        return None if wall is None else zone.first_minute(wall)

    def _is_due_by(self, match: Match, minute: int) -> bool:
        result: object = match(self._date(minute))
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TypeError(f"match returned {a_type(result)}; use a plain function that returns True or False")
        return bool(result)

    def _date(self, minute: int) -> CronDate:
        wall = self._zone.wall(minute)
        day, minute_of_day = divmod(wall, MINUTES_PER_DAY)
        at = to_time(minute).astimezone(self._zone.info)
        return CronDate(minute_of_day % 60, minute_of_day // 60, at.day, at.month, day % 7, at)


def _minute_from(at: datetime) -> int:
    """Return the first whole minute that is not before ``at``."""
    minute = to_minute(at)
    return minute if to_time(minute) == at else minute + 1
