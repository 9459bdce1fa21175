"""Parsing of crontabs and of items written in Python. An error lists all problems."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from stowhand.cron.check import APP_NAMES, CRONTAB_NAMES, PYTHON_NAMES, check_item
from stowhand.cron.command import IDENTIFIER_PATTERN, parse_command
from stowhand.cron.fields import FIELD_PATTERN, FIELDS, MACROS, Pattern, in_numbers, parse_pattern
from stowhand.cron.item import CronItem, Match, ParsedItem
from stowhand.errors import CrontabError, a_type
from stowhand.protocols.handler import is_async

MAX_PROBLEMS_LISTED = 1000
"""Maximum number of problems in one error."""
MAX_NAME_CHARACTERS = 40
"""Maximum length of an item's name in a message."""
_LINE_BREAK_PATTERN = re.compile("\r\n|\r|\n")


def parse_crontab(text: str, name: str = "crontab") -> tuple[ParsedItem, ...]:
    """Return the items of a crontab.

    Args:
        text: The text of the crontab.
        name: Name of the crontab in errors, such as its path.

    Raises:
        CrontabError: Lines are invalid; the message lists all of them.

    """
    problems: list[str] = []
    items = []
    if not isinstance(text, str):
        raise CrontabError(f"{name}: got {a_type(text)}; use its text")
    for number, line in enumerate(_LINE_BREAK_PATTERN.split(text.removeprefix("\ufeff")), start=1):
        line = line.strip()
        if line and not line.startswith("#"):
            items.append(_parse_line(line, f"{name} line {number}", problems))
    return _checked_items(items, problems)


def parse_cron_items(items: Iterable[CronItem]) -> tuple[ParsedItem, ...]:
    """Check items written in Python, and return them parsed.

    Raises:
        CrontabError: Items are invalid; the message lists all problems.

    """
    problems: list[str] = []
    value: object = items
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise CrontabError(f"cron items: got {a_type(value)}; use a list of CronItem")
    parsed = [
        _parse_item(item, f"cron item {number}", PYTHON_NAMES, problems) for number, item in enumerate(items, start=1)
    ]
    return _checked_items(parsed, problems)


def parse_app_item(item: CronItem) -> ParsedItem:
    """Return the item of one call of ``App.cron``, which also accepts names and macros. Raises CrontabError."""
    problems: list[str] = []
    if isinstance(item.match, str):
        try:
            item = msgspec.structs.replace(item, match=in_numbers(item.match))
        except ValueError as error:
            problems.append(f"App.cron ({_display_name(str(item.identifier or item.task))}): {error}")
            item = msgspec.structs.replace(item, match="* * * * *")
    (parsed,) = _checked_items([_parse_item(item, "App.cron", APP_NAMES, problems)], problems)
    return parsed


def refuse_duplicates(items: Iterable[ParsedItem]) -> tuple[ParsedItem, ...]:
    """Return the items. Raises CrontabError if two have the same identifier."""
    return _checked_items(list(items), [])


def _checked_items(items: Sequence[ParsedItem | None], problems: list[str]) -> tuple[ParsedItem, ...]:
    first: dict[str, ParsedItem] = {}
    for item in items:
        if item is not None and first.setdefault(item.identifier, item) is not item:
            other = first[item.identifier].position
            problems.append(
                f"{item.position}: duplicate identifier {item.identifier!r}, also of {other};"
                " change one of them (?id=NAME, CronItem.identifier)"
            )
    if problems:
        more = [f"… and {len(problems) - MAX_PROBLEMS_LISTED} more"] if len(problems) > MAX_PROBLEMS_LISTED else []
        raise CrontabError("\n".join(problems[:MAX_PROBLEMS_LISTED] + more))
    return tuple(first.values())


def _parse_line(line: str, position: str, problems: list[str]) -> ParsedItem | None:
    line_problems: list[str] = []
    words = line.split(None, 5)
    parsed_item = None
    if problem := _line_problem(words):
        line_problems.append(problem)
    else:
        pattern = parse_pattern(words[:5], line_problems)
        item = parse_command(words[5], line_problems)
        parsed_item = check_item(item, pattern, position, CRONTAB_NAMES, line_problems)
    problems += [f"{position}: {problem}" for problem in line_problems]
    return parsed_item


def _line_problem(words: Sequence[str]) -> str | None:
    """Return the problem of a line as a whole, if any."""
    first = words[0]
    if first.startswith("@"):
        replacement = MACROS.get(first.lower())
        return f"{first[:40]!r} is not supported; write {replacement or 'five fields, as in 0 4 * * *'}"
    count = next((index for index, word in enumerate(words) if not FIELD_PATTERN.fullmatch(word)), len(words))
    next_word = words[count + 1] if count + 1 < len(words) else "{"
    if count < 5 and count < len(words) and IDENTIFIER_PATTERN.fullmatch(words[count]) and next_word[0] in "?{":
        fields = "one field" if count == 1 else f"{count or 'no'} fields"
        return f"{fields} before {words[count][:40]!r}; write five: {' '.join(field.name for field in FIELDS)}"
    if len(words) < 6:
        return f"{' '.join(words)[:60]!r} is too short; write five fields and a task, as in 0 4 * * * send_report"
    return None


def _parse_item(item: object, position: str, names: Mapping[str, str], problems: list[str]) -> ParsedItem | None:
    if not isinstance(item, CronItem):
        problems.append(f"{position}: got {a_type(item)}; use a CronItem")
        return None
    item_problems: list[str] = []
    position = f"{position} ({_display_name(str(item.identifier or item.task))})"
    item = check_item(item, _read_match(item, item_problems), position, names, item_problems)
    problems += [f"{position}: {problem}" for problem in item_problems]
    return item


def _display_name(name: str) -> str:
    short = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"
    return short if short.isprintable() else ascii(short)


def _read_match(item: CronItem, problems: list[str]) -> Pattern | Match | None:
    match = item.match if item.pattern is None else item.pattern
    if (item.match is None) == (item.pattern is None):
        problems.append("use exactly one of match and its alias pattern")
        return None
    if isinstance(match, str):
        words = match.split()
        if len(words) == 5:
            return parse_pattern(words, problems)
        problems.append(f"match {match[:60]!r}: {len(words)} words; write five fields, as in '0 4 * * *'")
    elif not callable(match):
        problems.append(f"match: got {a_type(match)}; use five fields such as '0 4 * * *', or a function")
    elif is_async(match):
        problems.append("match: an async function; use a plain function")
    else:
        return match
    return None
