"""Report the words of the source, room by room. `scripts/words [ROOM ...]` prints them; nothing is checked."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import PACKAGE

MAX_NAMES = 60
FRAGMENT_WORDS = frozenset(
    {"Of", "By", "As", "At", "For", "From", "In", "It", "Its", "On", "Or", "That", "These", "They", "This", "Those"}
)
FRAGMENT_WORDS |= {"To", "What", "When", "Where", "Whether", "Which", "Who", "Whose", "With"}


def report(rooms: list[str]) -> Iterator[str]:
    """Yield the lines of the report about these rooms; about every room without any."""
    by_room: dict[str, list[Path]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        by_room.setdefault("/".join(path.relative_to(PACKAGE).parts[:-1]) or ".", []).append(path)
    for room, paths in by_room.items():
        if not rooms or any(room == name or room.startswith(name + "/") for name in rooms):
            yield f"\n## {room}"
            for title, lines in _sections(paths):
                if lines:
                    yield f"\n### {title} ({len(lines)})"
                    yield from lines


def _sections(paths: list[Path]) -> Iterator[tuple[str, list[str]]]:
    trees = {path: ast.parse(path.read_text()) for path in paths}
    yield "modules in -ing", [path.name for path in paths if path.stem.endswith("ing")]
    yield "constants of one word", [line for path, tree in trees.items() for line in _constants(path, tree)]
    yield "parameters", _frequencies(name for tree in trees.values() for name in _parameters(tree))
    yield "attributes", _frequencies(name for tree in trees.values() for name in _attributes(tree))
    yield (
        "docstrings that begin with a fragment",
        [line for path, tree in trees.items() for line in _fragments(path, tree)],
    )
    yield "text or container times a value", [line for path, tree in trees.items() for line in _products(path, tree)]


def _frequencies(names: Iterator[str]) -> list[str]:
    return [f"{count:5} {name}" for name, count in Counter(names).most_common(MAX_NAMES)]


def _constants(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=value)
            ):
                if len(name) > 1 and name.isupper() and "_" not in name.strip("_"):
                    yield f"{path.name}:{node.lineno} {name} = {ast.unparse(value)[:60] if value else ''}"


def _parameters(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            arguments = node.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if argument.arg not in ("self", "cls"):
                    yield argument.arg


def _attributes(tree: ast.Module) -> Iterator[str]:
    """Yield names of fields and methods of classes, and attributes that a constructor sets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not member.name.startswith("__"):
                    yield member.name
                elif isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
                    yield member.target.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def _fragments(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and text.split()[0].rstrip(",:") in FRAGMENT_WORDS:
                yield f"{path.name}: {text.splitlines()[0][:110]}"


def _products(path: Path, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.BinOp(left=left, op=ast.Mult(), right=right) if any(map(_is_text_or_container, (left, right))):
                yield f"{path.name}:{node.lineno} {ast.unparse(node)[:100]}"


def _is_text_or_container(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.JoinedStr | ast.List | ast.Tuple)


if __name__ == "__main__":
    sys.stdout.writelines(line + "\n" for line in report(sys.argv[1:]))
