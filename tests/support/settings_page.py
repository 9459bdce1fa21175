"""Writes the tables of docs/reference/settings.md from the options that the structs declare.

`python -m tests.support.settings_page` (scripts/settings-page) writes them anew.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stowhand.app.options import StoreKeywords, WorkerKeywords
from stowhand.app.presets import PRESETS
from stowhand.app.settings.settings import SETTINGS, StoreSettings, WorkerSettings
from stowhand.jobs.sizes import format_size
from stowhand.protocols.options import IntegerOption, Names, Option, Seconds, Size, Switch, WorkerOptions, options_of
from stowhand.protocols.store import StoreOptions
from stowhand.runner.options import RunnerOptions

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
MADE = re.compile(r"(?<=<!-- made by scripts/settings-page -->\n).*?(?=\n<!-- to here -->)", re.DOTALL)
SECTIONS = {
    "The store": (
        "In Python: a keyword of `App(…)` or a field of `StoreOptions`, with the same name.",
        (StoreSettings, StoreOptions),
    ),
    "The worker": (
        "In Python: a keyword of `app.worker(…)` or a field of `WorkerOptions`, with the same name.",
        (WorkerOptions,),
    ),
    "The process": ("Not in Python and not in the runner: a program does this itself.", (WorkerSettings,)),
}
KEYWORDS = {*StoreKeywords.__annotations__, *WorkerKeywords.__annotations__}
RUNNERS = {"connection": "connection_string", "pool": "pg_pool"}
"""Names of the runner that differ."""
HEAD = "| setting | default | meaning |\n|---|---|---|"


def made() -> str:
    """Return the text between the marks."""
    parts = []
    for title, (python, structs) in SECTIONS.items():
        lines = [_row(option, struct) for struct in structs for option in options_of(struct).values()]
        parts.append("\n".join((f"### {title}\n\n{python}\n", HEAD, *lines)))
    presets = "\n".join(f"| `{name}` | {', '.join(_preset(values)) or 'nothing'} |" for name, values in PRESETS.items())
    return "\n\n".join((*parts, f"### Presets\n\n| preset | sets |\n|---|---|\n{presets}"))


def _row(option: Option, struct: type) -> str:
    default = option.unset or (f"`{output}`" if (output := option.said_default) else "-")
    if isinstance(option, Switch) and option.negated:
        default += f" (in Python `{option.field}={option.default}`)"
    name = option.field if option.on == "python" else option.name
    value = "" if (output := values(option, struct)) == "text" else f"Value: {output}."
    meaning = " ".join(filter(None, (option.doc, value, *_places(option, struct))))
    return f"| `{name}` | {default} | {meaning} |"


def _places(option: Option, struct: type) -> Iterator[str]:
    """Yield a sentence for each place that has the option under another name than its section says, or not at all."""
    is_process = struct is WorkerSettings
    if option.on == "settings":
        yield "No option."
    elif option.on != "python" and option.short:
        yield f"Also {', '.join(map(_code, sorted(option.short, key=lambda name: name.startswith('--'))))}."
    is_keyword = option.field in KEYWORDS and (not is_process or option.name == "preset")
    runner = _name_in_runner(option) if not is_process else ""
    if option.on == "python":
        where = "" if not runner else " and the runner" if runner == option.field else f" and the runner (`{runner}`)"
        yield f"Only in Python{where}."
        return
    if is_keyword == is_process:
        yield "Also in Python." if is_keyword else "Not in Python."
    elif is_keyword and option.field != option.name:
        yield f"In Python `{option.field}`."
    if not is_process and runner != option.name:
        yield f"In the runner `{runner}`." if runner else "Not in the runner."


def _name_in_runner(option: Option) -> str:
    names = (RUNNERS.get(option.field, ""), option.name, option.field)
    return next((name for name in names if name in RunnerOptions.__annotations__), "")


def values(option: Option, struct: type) -> str:
    """What may be written."""
    if option.words:
        return ", ".join(map(_code, option.words))
    match option:
        case Size():
            return f"size, at least {format_size(option.minimum)}"
        case Seconds():
            milliseconds = ", a plain number is ms" if option.unit == "ms" else ""
            return f"duration{milliseconds}{f', or `{option.none}`' if option.none else ''}"
        case IntegerOption():
            return f"{option.minimum} to {option.maximum}"
        case Switch():
            return "`true`, `false`"
        case Names():
            return "names"
    return "an object" if struct is StoreOptions and option.field == "pool" else "text"


def _preset(given: dict[str, object]) -> Iterator[str]:
    by_field = {option.field: option for option in SETTINGS.values()}
    for field, value in given.items():
        message = f'"{value}"' if isinstance(value, str) else by_field[field].say(value)
        yield f"`{by_field[field].name} = {message}`"


def _code(text: str) -> str:
    return f"`{text}`" if text else "-"


if __name__ == "__main__":
    PAGE.write_text(MADE.sub(lambda found: made(), PAGE.read_text()))
