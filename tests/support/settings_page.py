"""The tables of docs/reference/settings.md, made of the options that the structs declare.

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
    "The store": ("a keyword of `App(…)`, a field of `StoreOptions`", (StoreSettings, StoreOptions)),
    "The worker": ("a keyword of `app.worker(…)`, a field of `WorkerOptions`", (WorkerOptions,)),
    "The process": ("a keyword of `App(…)`", (WorkerSettings,)),
}
KEYWORDS = {*StoreKeywords.__annotations__, *WorkerKeywords.__annotations__}
RUNNERS = {"connection": "connection_string", "pool": "pg_pool"}
"""Where the runner has a name of its own."""
HEAD = f"| setting | option | variable | in Python | runner | value | default | meaning |\n|{'---|' * 8}"


def made() -> str:
    """What stands between the marks."""
    parts = []
    for title, (python, structs) in SECTIONS.items():
        lines = [_row(option, struct) for struct in structs for option in options_of(struct).values()]
        parts.append("\n".join((f"### {title}\n\n*In Python*: {python}.\n", HEAD, *lines)))
    presets = "\n".join(f"| `{name}` | {', '.join(_preset(values)) or 'nothing'} |" for name, values in PRESETS.items())
    return "\n\n".join((*parts, f"### Presets\n\n| preset | sets |\n|---|---|\n{presets}"))


def _row(option: Option, struct: type) -> str:
    python = (
        option.field if option.field in KEYWORDS and (struct is not WorkerSettings or option.name == "preset") else ""
    )
    names = (RUNNERS.get(option.field, ""), option.name, option.field)
    # A process has settings of the same names (``crontab``, ``tasks``), which are other things there.
    runner = next(
        (name for name in names if name in RunnerOptions.__annotations__ and struct is not WorkerSettings), ""
    )
    default = option.unset or (f"`{said}`" if (said := option.said_default) else "-")
    if isinstance(option, Switch) and option.negated:
        default += f" (in Python `{option.field}={option.default}`)"
    is_setting = option.on != "python"
    cells = [
        _code(option.name) if is_setting else "-",
        ", ".join(map(_code, _spellings(option))) if option.on not in ("python", "settings") else "-",
        _code(option.variables[0]) if is_setting else "-",
        _code(python),
        _code(runner),
        values(option, struct),
        default,
        option.doc,
    ]
    return f"| {' | '.join(cells)} |"


def _spellings(option: Option) -> Iterator[str]:
    yield from (short for short in option.short if not short.startswith("--"))
    yield from (short for short in option.short if short.startswith("--"))
    yield option.flag


def values(option: Option, struct: type) -> str:
    """What may be written."""
    if option.words:
        return ", ".join(map(_code, option.words))
    match option:
        case Size():
            return f"size, at least {format_size(option.least)}"
        case Seconds():
            milliseconds = ", a plain number is ms" if option.unit == "ms" else ""
            return f"duration{milliseconds}{f', or `{option.none}`' if option.none else ''}"
        case IntegerOption():
            return f"{option.least} to {option.most}"
        case Switch():
            return "`true`, `false`"
        case Names():
            return "names"
    return "an object" if struct is StoreOptions and option.field == "pool" else "text"


def _preset(given: dict[str, object]) -> Iterator[str]:
    by_field = {option.field: option for option in SETTINGS.values()}
    for field, value in given.items():
        said = f'"{value}"' if isinstance(value, str) else by_field[field].say(value)
        yield f"`{by_field[field].name} = {said}`"


def _code(text: str) -> str:
    return f"`{text}`" if text else "-"


if __name__ == "__main__":
    PAGE.write_text(MADE.sub(lambda found: made(), PAGE.read_text()))
