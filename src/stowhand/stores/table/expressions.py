"""What is selected of a claimed record, and whose turn it is: the options' expressions, read for the backends.

Text is a name and nothing else. ``sql(…)`` and what a driver composes (``psycopg.sql``) pass through as they are; the
backend renders them, or refuses what is not its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from stowhand.errors import TableUnsuitable, hint
from stowhand.stores.table.names import COLUMNS, Column, Read, Shape, read_expression
from stowhand.stores.table.options import TableOptions
from stowhand.stores.table.records import fields_of


class Selected(msgspec.Struct, frozen=True):
    """One item of the list that follows SELECT."""

    expression: Read
    name: str | None = None
    """What follows AS; ``None``: as the database calls it, or as the expression itself says."""


def order_of(options: TableOptions[Any], shape: Shape) -> tuple[Read, ...]:
    """What a claim is ordered by; the id is last, so that the order is always total."""
    given = options.order_by_expression
    parts = tuple(
        read_expression("order_by_expression", one, folds=shape.folds)
        for one in (given if isinstance(given, list | tuple) else (given,))
    )
    last = Column(shape.columns["id"], shape.view_label)
    by_id = bool(parts) and isinstance(parts[-1], Column) and parts[-1].name == last.name
    return parts if by_id else (*parts, last)


def selected(options: TableOptions[Any], shape: Shape, columns: Sequence[str]) -> tuple[Selected, ...]:
    """What makes a record. ``columns``: the names that the view (or table) has in the catalog.

    Raises TableUnsuitable when a field of ``record`` that must be given is not among them.
    """
    if options.column_expressions:
        return tuple(
            Selected(one, one.name if isinstance(one, Column) else None)
            for one in (
                read_expression(f"column_expressions[{at}]", given, folds=shape.folds)
                for at, given in enumerate(options.column_expressions)
            )
        )
    label = shape.view_label
    fields = None if options.record is None else fields_of(options.record)
    if fields is None:
        return tuple(Selected(Column(name, label), name) for name in columns)
    found, missing = [], []
    for field, required in fields.items():
        name = _nearest_spelling(field, shape, columns)
        if name is not None:
            found.append(Selected(Column(name, label), field))
        elif required:
            missing.append(field)
    if missing or not found:
        raise TableUnsuitable(_unsuitable(missing, options, shape, columns))
    return tuple(found)


def _nearest_spelling(field: str, shape: Shape, columns: Sequence[str]) -> str | None:
    """The column of that name; else what the documented name was mapped to; else one that differs in case alone."""
    if field in columns:
        return field
    if field in COLUMNS and shape.columns[field] in columns:
        return shape.columns[field]
    alike = [name for name in columns if name.lower() == field.lower()]
    return alike[0] if len(alike) == 1 else None


def _unsuitable(missing: list[str], options: TableOptions[Any], shape: Shape, columns: Sequence[str]) -> str:
    record = getattr(options.record, "__qualname__", str(options.record))
    where = ".".join(shape.view.parts)
    if not missing:
        return f"{where}: none of its columns is a field of {record}; give column_expressions"
    named = [f"{field!r}{f' ({near[2:]})' if (near := hint(field, columns)) else ''}" for field in missing]
    return (
        f"{where}: no such column: {', '.join(named)}, which {record} cannot do without;"
        ' select it under that name in the view, or by column_expressions: sql("… AS field")'
    )
