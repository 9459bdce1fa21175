"""The check of an item, and its *spec*: the whole item on one line in normalized form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from stowhand.cron.fields import Calendar, Pattern
from stowhand.cron.item import CronItem, CronOptions, Match, ParsedItem
from stowhand.cron.zones import Zone, find_zone
from stowhand.errors import a_type, suggest
from stowhand.jobs import limits, strict_json
from stowhand.jobs.durations import Duration, format_duration, seconds
from stowhand.jobs.job import KeyMode, NewJob
from stowhand.jobs.strict_json import encode_plain
from stowhand.protocols.validation import validate_identifier

MAX_FILL_SECONDS = 366 * 86_400
"""Less than the 400 days for which the ledger keeps ticks (`store.LEDGER_DAYS`)."""
ITEM_KEY_MODES = (KeyMode.REPLACE, KeyMode.PRESERVE_RUN_AT)
"""Without ``unsafe_dedupe``: a failed job with the key would silently end the item forever."""
CRONTAB_NAMES = {
    "fill": "fill", "max_attempts": "max", "serial": "queue", "priority": "priority", "key": "jobKey",
    "key_mode": "jobKeyMode", "queue": "work_queue",
}  # fmt: skip
"""Names of job options in a crontab, by field."""
PYTHON_NAMES = {
    "fill": "backfill_period", "max_attempts": "max_attempts", "serial": "queue_name", "priority": "priority",
    "key": "job_key", "key_mode": "job_key_mode", "queue": "work_queue",
}  # fmt: skip
"""Names of job options in `CronOptions`, by field."""
APP_NAMES = {field: field for field in PYTHON_NAMES} | {"fill": "backfill_period"}
"""Names of job options in `App.cron`, by field: as for any job."""
_SAMPLE_TIME = "2000-01-01T00:00:00.000Z"
_UNQUOTED_CHARACTERS = "/:_.-~"
"""Characters that the options of a spec contain unquoted, besides letters and digits."""


def check_item(
    item: CronItem, when: Pattern | Match | None, position: str, names: Mapping[str, str], problems: list[str]
) -> ParsedItem | None:
    """Return the item, ready for scheduling; ``None`` if there are problems, including those of the caller.

    ``names``: the names of job options in the source of the item.
    """
    item_options: object = item.options
    options = item_options if isinstance(item_options, CronOptions) else CronOptions()

    def read(reader: Callable[[Any], Any], value: object, label: str = "") -> Any:
        # One by one, so that all problems are reported at once.
        try:
            return reader(value)
        except ValueError as error:
            problems.append(f"{label}{error}")

    read(_read_task, item.task)
    identifier = read(validate_identifier, item.task if item.identifier is None else item.identifier)
    fill = read(_read_fill, options.backfill_period, f"{names['fill']}: ")
    zone = read(_read_zone, item.tz, "tz: ")
    payload = read(_read_payload, item.payload)
    key_mode = read(_read_key_mode, options, f"{names['key_mode']}: ")
    details = _details(options)
    for field, value in details.items():
        try:
            limits.check_options(NewJob(task="any", **{field: value}))
        except ValueError as error:
            problems.append(str(error).replace(field, names[field], 1))
    if options is not item_options:
        problems.append(f"options: got {a_type(item_options)}; use CronOptions(…)")
    if problems or when is None:
        return None
    job = NewJob(task=item.task, key_mode=key_mode, **details)
    return ParsedItem(
        identifier=identifier,
        fill=float(fill),
        spec=_write_spec(identifier, when, job, fill, zone.name, payload),
        payload=payload,
        options=options,
        position=position,
        _when=Calendar(when) if isinstance(when, Pattern) else when,
        _every_hour=isinstance(when, Pattern) and when.every_hour,
        _zone=zone,
        _job=job,
    )


def _details(options: CronOptions) -> dict[str, Any]:
    """Return the options that are set, by the names of `NewJob`."""
    fields = ("max_attempts", "serial", "queue", "priority", "key")
    values = {field: getattr(options, PYTHON_NAMES[field]) for field in fields}
    return {field: value for field, value in values.items() if value is not None}


def _read_task(task: object) -> str:
    return limits.check_name("task", task, limits.MAX_TASK_CHARACTERS)


def _read_fill(period: Duration) -> int:
    """Return the seconds, rounded up."""
    period = seconds(period)
    if not 0 <= period <= MAX_FILL_SECONDS:
        raise ValueError(f"{period:.9g} s; use 0 to 366d, the time for which ticks are remembered")
    return math.ceil(period)


def _read_zone(name: object) -> Zone:
    if name is None:
        return find_zone("UTC")
    if not isinstance(name, str):
        raise ValueError(f"got {a_type(name)}; use a name such as Europe/Berlin")
    return find_zone(name)


def _read_key_mode(options: CronOptions) -> KeyMode:
    mode = options.job_key_mode
    if mode is None:
        return KeyMode.REPLACE
    if mode not in ITEM_KEY_MODES:
        raise ValueError(f"{mode!r}{suggest(mode, ITEM_KEY_MODES)}")
    if options.job_key is None:
        raise ValueError(f"{mode!r} has no effect without a key; use a key too")
    return KeyMode(mode)


def _read_payload(payload: object) -> dict[str, object]:
    """Return a copy without ``_cron``, which is reserved. Checks the whole payload that every job will have."""
    write = encode_plain if isinstance(payload, dict) else strict_json.encode  # the fields of a model are typed
    value = {} if payload is None else strict_json.decode(write(payload))
    if not isinstance(value, dict):
        raise ValueError(f"payload: {json.dumps(value)[:40]}; use an object")
    value.pop("_cron", None)
    strict_json.encode({**value, "_cron": {"ts": _SAMPLE_TIME, "backfilled": False}})
    return value


def _write_spec(
    identifier: str, when: Pattern | Match, job: NewJob, fill: int, tz: str, payload: Mapping[str, object]
) -> str:
    """Return the spec. `parse_crontab` reads it back as the same item if it can read its task and times."""
    options = {
        "id": identifier if identifier != job.task else None,
        "fill": format_duration(fill) if fill else None,
        "max": job.max_attempts if job.max_attempts != NewJob(task="").max_attempts else None,
        "queue": job.serial,
        "work_queue": job.queue,
        "priority": job.priority or None,
        "jobKey": job.key,
        "jobKeyMode": job.key_mode.value if job.key_mode is not KeyMode.REPLACE else None,
        "tz": tz if tz != "UTC" else None,
    }
    query = [
        f"{name}={quote(str(value), safe=_UNQUOTED_CHARACTERS)}" for name, value in options.items() if value is not None
    ]
    words = [when.spec if isinstance(when, Pattern) else _name(when), job.task]
    if query:
        words.append(f"?{'&'.join(query)}")
    if payload:
        words.append(json.dumps(payload, ensure_ascii=False, sort_keys=True, separators=(",", ":")))
    return " ".join(words)


def _name(match: Match) -> str:
    subject = match if hasattr(match, "__qualname__") else type(match)
    return f"{subject.__module__}.{subject.__qualname__}"
