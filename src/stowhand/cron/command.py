"""The command after the five fields of a crontab line: ``task ?options {payload}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from stowhand.cron.fields import FIELD_PATTERN
from stowhand.cron.item import CronItem, CronOptions
from stowhand.errors import hint, suggest
from stowhand.jobs.durations import parse_duration

IDENTIFIER_PATTERN = re.compile(r"[_a-zA-Z][_a-zA-Z0-9:/.-]*")
MAX_JSON5_CHARACTERS = 64 * 1024
"""JSON5 is slow to read. Strict JSON may be as large as any payload."""
_COMMAND_PATTERN = re.compile(r"([^\s?{]*)\s*(\?\S*)?\s*(\{.*)?", re.DOTALL)
_INTEGER_PATTERN = re.compile(r"-?[0-9]{1,400}")
_PERIOD_PATTERN = re.compile(r"(?:[0-9]{1,12}[wdhms])+")
_INVALID_PERCENT_PATTERN = re.compile(r"%(?![0-9a-fA-F]{2})")


def parse_command(text: str, problems: list[str]) -> CronItem:
    """Return an item without its times. Adds errors to ``problems``, and omits invalid parts."""
    match = _COMMAND_PATTERN.match(text)
    assert match is not None  # every part of it may be empty
    task, options, payload = match.groups()
    rest = text[match.end() :].strip()
    if FIELD_PATTERN.fullmatch(task):
        problems.append(f"{task!r} in place of the task; write five fields (there is no field for seconds)")
    else:
        if not IDENTIFIER_PATTERN.fullmatch(task):
            problems.append(_no_identifier("task", task))
        if rest:
            problems.append(f"{rest[:40]!r} after the task is neither ?options nor a {{payload}}")
    arguments = _read_options(options, problems) if options is not None else {}
    return CronItem(
        task=task,
        identifier=arguments.pop("identifier", None),
        tz=arguments.pop("tz", None),
        payload=_read_payload(payload, problems) if payload is not None else None,
        options=CronOptions(**arguments),
    )


def _read_options(text: str, problems: list[str]) -> dict[str, Any]:
    """Return a query string, which begins with ``?``, as arguments of CronItem and CronOptions."""
    arguments: dict[str, Any] = {}
    seen = set()
    for pair in text[1:].split("&"):
        name, equals, raw = pair.partition("=")
        if name not in _OPTION_READERS:
            problems.append(_no_option(name))
        elif name in seen:
            problems.append(f"option {name!r} is repeated; use it once")
        elif not raw:
            problems.append(f"option {name!r} has no value; write {name}{equals or '='}…")
        else:
            field, read = _OPTION_READERS[name]
            try:
                arguments[field] = read(_decode(raw))
            except ValueError as error:
                problems.append(f"{name}={raw[:40]}: {error}")
        seen.add(name)
    return arguments


def _decode(raw: str) -> str:
    if _INVALID_PERCENT_PATTERN.search(raw):
        raise ValueError("% must be followed by two hexadecimal digits; write %25 for a percent sign")
    try:
        return unquote_to_bytes(raw.replace("+", " ")).decode()
    except UnicodeError:
        raise ValueError("its %XX sequences are not valid UTF-8") from None


def _read_identifier(text: str) -> str:
    if not IDENTIFIER_PATTERN.fullmatch(text):
        raise ValueError("begin with a letter or _, then letters, digits, _ - : / .")
    return text


def _read_period(text: str) -> float:
    if not _PERIOD_PATTERN.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a period; write for example 30m, 2d or 4w3d2h1m (units: w d h m s)")
    return parse_duration(text)


def _read_integer(text: str) -> int:
    if not _INTEGER_PATTERN.fullmatch(text):
        raise ValueError("use a whole number")
    return int(text)


def _read_zone(text: str) -> str:
    return text.replace(" ", "+")  # as in Etc/GMT+1: a query string decodes + as a space, and no zone has a space


_OPTION_READERS: dict[str, tuple[str, Callable[[str], object]]] = {
    "id": ("identifier", _read_identifier),
    "fill": ("backfill_period", _read_period),
    "max": ("max_attempts", _read_integer),
    "queue": ("queue_name", str),
    "work_queue": ("work_queue", str),
    "priority": ("priority", _read_integer),
    "jobKey": ("job_key", str),
    "jobKeyMode": ("job_key_mode", str),
    "tz": ("tz", _read_zone),
}
"""The field and the reader of each option."""


def _no_option(name: str) -> str:
    if not name:
        return "an option without a name; write ?name=value&name=value"
    fields = {field: option for option, (field, _) in _OPTION_READERS.items()} | {"serial": "queue"}
    return f"no option {name[:40]!r}{hint(name, _OPTION_READERS, synonyms=fields) or suggest(name, _OPTION_READERS)}"


def _no_identifier(kind: str, text: str) -> str:
    subject = f"{kind} {text[:40]!r}" if text else f"no {kind}"
    return f"{subject}; use a name that begins with a letter or _, then letters, digits, _ - : / ."


def _read_payload(text: str, problems: list[str]) -> object:
    """Return a JSON5 object. Tries strict JSON first, which is a hundred times faster."""
    try:
        return json.loads(text, object_pairs_hook=_object)
    except (ValueError, RecursionError):
        pass
    import json5

    try:
        if len(text) > MAX_JSON5_CHARACTERS:
            raise ValueError(f"{len(text)} characters of JSON5, the limit is {MAX_JSON5_CHARACTERS}; write strict JSON")
        # json5 keeps two \\u escapes of one character as surrogates. A JSON reader joins them.
        return json.loads(json.dumps(json5.loads(text, object_pairs_hook=_object)))
    except RecursionError:
        problems.append("payload: nested too deeply for JSON5; write strict JSON, with at most 64 levels")
    except ValueError as error:
        order = "; write options before the payload" if re.search(r"\}\s*\?\S+$", text) else ""
        problems.append(f"payload: {str(error).removeprefix('<string>:1 ')}{order}")
    return None


def _object(pairs: Any) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key[:40]!r}")
        result[key] = value
    return result
