"""Named statements in .sql files, and literals. Nothing here knows about jobs.

-- name: claim
select * from {schema}.claim(%s, ...)       {braces} are filled in once, when the store is built;
                                            values are always parameters, never text.
-- part: task_condition
 and (%(task)s is null or …)                a part that statements below use as {task_condition}
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable

_STATEMENT_HEADER = re.compile(r"^-- (name|part): (\w+)\n", re.MULTILINE)
_PLACEHOLDER_PATTERN = re.compile(r"\{([a-z_]+)\}")


def load_statements(file: Traversable, fillings: Mapping[str, str]) -> dict[str, bytes]:
    """Return every named statement of ``file``, encoded and filled in."""
    _, *parts = _STATEMENT_HEADER.split(file.read_text(encoding="utf-8"))
    statements: dict[str, bytes] = {}
    parts_by_name: dict[str, str] = {}
    for kind, name, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if name in statements or name in parts_by_name:
            raise ValueError(f"statement {name!r} is declared twice in {file.name}")
        text = _PLACEHOLDER_PATTERN.sub(lambda match: parts_by_name.get(match[1], match[0]), text)
        if kind == "part":
            parts_by_name[name] = text.strip()
        else:
            statements[name] = fill(text, fillings).strip().encode()
    return statements


def fill(text: str, fillings: Mapping[str, str]) -> str:
    """Return ``text`` with its {placeholders} filled. Raise KeyError if a filling is missing."""
    return _PLACEHOLDER_PATTERN.sub(lambda match: fillings[match[1]], text)


def quote_identifier(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return a text as a literal (an E'' string where it contains a backslash)."""
    quoted = "'" + text.replace("'", "''").replace("\\", "\\\\") + "'"
    return f" E{quoted}" if "\\" in text else quoted


def text_array(texts: Iterable[str | None]) -> str:
    """Return an array literal of texts."""
    return "{" + ",".join(["NULL" if text is None else quoted(text) for text in texts]) + "}"


def plain_array(values: Iterable[object]) -> str:
    """Return an array literal of values that need no quotes: numbers and booleans."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def token_array(tokens: Sequence[str]) -> str:
    """Return an array literal of texts, which is fast if none of them needs escapes."""
    joined = "".join(tokens)
    if not tokens or '"' in joined or "\\" in joined:
        return text_array(tokens)
    return '{"' + '","'.join(tokens) + '"}'


def quoted(text: str) -> str:
    """Return a text as an element of an array literal."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
