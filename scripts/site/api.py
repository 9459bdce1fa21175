"""API reference: one page per public module, made from signatures and docstrings.

In the repository a link to such a module leads to its source. On the site it leads to the page that is made here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import griffe

from tests.support.public_names import PUBLIC, public_names

SOURCE = PurePosixPath("src")
MODULES = (*PUBLIC, "stowhand.events")
_SIGNATURE_WIDTH = 88


def source_of(module: str) -> PurePosixPath:
    """Return the file of a public module, relative to the repository."""
    path = SOURCE.joinpath(*module.split("."))
    file = inspect.getsourcefile(importlib.import_module(module))
    return path / "__init__.py" if file and Path(file).name == "__init__.py" else path.with_suffix(".py")


@cache
def sources() -> dict[PurePosixPath, str]:
    """Return the public modules by their files."""
    return {source_of(module): module for module in MODULES}


def place_of(module: str) -> PurePosixPath:
    """Return the place of a module's page on the site."""
    return PurePosixPath("reference", f"api-{module}.md")


def text_of(module: str) -> str:
    """Return the page of a public module as Markdown. Each name and each member of a class is a heading."""
    names = sorted(public_names(module), key=lambda name: (name.lower(), name))
    parts = [f"# {module}", f"`from {module} import {names[0]}`"]
    for name in names:
        parts += _parts_of(module, name)
    return "\n\n".join(parts) + "\n"


@cache
def _package() -> griffe.Module:
    package = griffe.load(
        "stowhand",
        search_paths=["src"],
        docstring_parser="google",
        docstring_options={"warnings": False},  # parameters without annotations have overloads with them
        resolve_aliases=True,
    )
    assert isinstance(package, griffe.Module)
    return package


def _documented(value: Any) -> griffe.Object | griffe.Alias:
    found = _package()[".".join([*value.__module__.split(".")[1:], value.__qualname__])]
    assert isinstance(found, griffe.Object | griffe.Alias)
    return found


def _parts_of(module: str, name: str) -> Iterator[str]:
    value = getattr(importlib.import_module(module), name)
    yield f"## `{name}`"
    if not str(getattr(value, "__module__", "")).startswith("stowhand"):
        yield _code(f"{name} = {value!r}")
        return
    documented = _documented(value)
    if not isinstance(documented, griffe.Class):
        yield from _function_parts(documented, name)
        return
    yield _code(f"class {_call(documented, name)}")
    yield from _docstring_parts(documented)
    for member_name, member in sorted(documented.all_members.items()):
        if not member_name.startswith("_"):
            yield from _member_parts(member, f"{name}.{member_name}", getattr(value, member_name, None))


def _member_parts(member: griffe.Object | griffe.Alias, name: str, value: object) -> Iterator[str]:
    if isinstance(member, griffe.Alias):
        member = member.final_target
    if isinstance(member, griffe.Function):
        yield f"### `{name}`"
        yield from _function_parts(member, name)
    elif (
        isinstance(member, griffe.Attribute) and callable(value) and not isinstance(value, type)
    ):  # made by a descriptor
        yield f"### `{name}`"
        yield from _function_parts(_documented(inspect.unwrap(value)), name)
    elif isinstance(member, griffe.Attribute):
        yield f"### `{name}`"
        value_text = "" if member.value is None or "property" in member.labels else str(member.value)
        default = f" = {value_text}" if value_text and "self." not in value_text and "\n" not in value_text else ""
        yield _code(f"{name}{f': {member.annotation}' if member.annotation else ''}{default}")
        yield from _docstring_parts(member)


def _function_parts(function: griffe.Object | griffe.Alias, name: str) -> Iterator[str]:
    assert isinstance(function, griffe.Function)
    variants = function.overloads if isinstance(function.overloads, list) and function.overloads else [function]
    prefix = "async " if "async" in function.labels else ""
    yield _code("\n".join(f"{prefix}def {_call(variant, name)}" for variant in variants))
    yield from _docstring_parts(function)


def _call(documented: griffe.Object, name: str) -> str:
    """Return the name with its parameters, as it is called, and the type that it returns."""
    if isinstance(documented, griffe.Class):
        constructor = documented.all_members.get("__init__")
        if isinstance(constructor, griffe.Alias):
            constructor = constructor.final_target
        if not isinstance(constructor, griffe.Function):
            return name
        parameters, returns = constructor.parameters, ""
    else:
        assert isinstance(documented, griffe.Function)
        parameters, returns = documented.parameters, f" -> {documented.returns}" if documented.returns else ""
    shown = list(_parameters([one for one in parameters if one.name not in ("self", "cls")]))
    if len(line := f"{name}({', '.join(shown)}){returns}") <= _SIGNATURE_WIDTH:
        return line
    return "\n".join((f"{name}(", *(f"    {parameter}," for parameter in shown), f"){returns}"))


def _parameters(parameters: list[griffe.Parameter]) -> Iterator[str]:
    kinds = griffe.ParameterKind
    had_positional, had_star = False, False
    for parameter in parameters:
        if had_positional and parameter.kind is not kinds.positional_only:
            yield "/"
        had_positional = parameter.kind is kinds.positional_only
        if parameter.kind is kinds.keyword_only and not had_star:
            yield "*"
        had_star = had_star or parameter.kind in (kinds.var_positional, kinds.keyword_only)
        is_star = parameter.kind in (kinds.var_positional, kinds.var_keyword)
        stars = "" if not is_star else "*" if parameter.kind is kinds.var_positional else "**"
        annotation = f": {parameter.annotation}" if parameter.annotation else ""
        equals = " = " if annotation else "="
        default = f"{equals}{parameter.default}" if parameter.default is not None and not is_star else ""
        yield f"{stars}{parameter.name}{annotation}{default}"
    if had_positional:
        yield "/"


def _docstring_parts(documented: griffe.Object | griffe.Alias) -> Iterator[str]:
    for section in documented.docstring.parsed if documented.docstring else ():
        match section:
            case griffe.DocstringSectionText():
                yield section.value
            case griffe.DocstringSectionParameters() | griffe.DocstringSectionAttributes():
                yield "Arguments:\n\n" + "\n".join(f"* `{one.name}`: {_line(one.description)}" for one in section.value)
            case griffe.DocstringSectionRaises():
                yield "Raises:\n\n" + "\n".join(
                    f"* `{one.annotation}`: {_line(one.description)}" for one in section.value
                )
            case griffe.DocstringSectionReturns() | griffe.DocstringSectionYields():
                yield "Returns: " + " ".join(_line(one.description) for one in section.value)
            case griffe.DocstringSectionExamples():
                yield _code("\n".join(text for _, text in section.value))
            case griffe.DocstringSectionAdmonition():
                yield _code(section.value.description)
            case _:
                raise ValueError(f"a docstring section without a form on the site: {section.kind}")


def _line(text: str) -> str:
    return " ".join(text.split())


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
