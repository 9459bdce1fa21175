"""Report the size of the package: what a newcomer has to read. `scripts/size` prints it; no test limits it."""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.support.sources import PACKAGE, ROOT, Source, package_sources, sources_of_tests

IGNORED_TOKENS = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)


def report() -> Iterator[tuple[str, int]]:
    """Yield each measure with its figure."""
    sources = package_sources()
    yield "Python files", len(sources)
    yield "Python lines", sum(source.text.count("\n") for source in sources)
    yield "tokens without comments and docstrings", sum(_tokens(source) for source in sources)
    yield "folders", len({source.name.split("/")[0] for source in sources if "/" in source.name})
    yield "imports between folders (ordered pairs)", len(_arrows(sources))
    for folder in ("worker", "protocols", "web"):
        yield f"files in {folder}/", len(list((PACKAGE / folder).glob("*.py")))
    yield "source files that mention max_attempts", _mentions("max_attempts", PACKAGE.rglob("*"))
    yield "SQL files that contain errored", _mentions("errored", PACKAGE.rglob("*.sql"))
    yield "test files", len(sources_of_tests())
    yield "lines of tests", sum(source.text.count("\n") for source in sources_of_tests())
    yield "words of docs", sum(len(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md"))


def _mentions(word: str, files: Iterator[Path]) -> int:
    """Count the files that contain `word`; migrations are left out."""
    return sum(
        word in path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in {".py", ".sql", ".lua", ".html"} and "migrations" not in path.parts
    )


def _arrows(sources: list[Source]) -> set[tuple[str, str]]:
    folders = {source.name.split("/")[0] for source in sources if "/" in source.name}
    return {
        (folder, other)
        for source in sources
        for module, _ in source.imports
        if "/" in source.name and module.startswith("stowhand.")
        if (folder := source.name.split("/")[0]) != (other := module.split(".")[1]) and other in folders
    }


def _tokens(source: Source) -> int:
    docstrings = {
        node.body[0].lineno
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if ast.get_docstring(node, clean=False) is not None
    }
    return sum(
        token.type not in IGNORED_TOKENS and not (token.type == tokenize.STRING and token.start[0] in docstrings)
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline)
    )


if __name__ == "__main__":
    for measure, figure in report():
        sys.stdout.write(f"{figure:>9,}  {measure}\n")
