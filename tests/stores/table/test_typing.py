"""The type of a record goes from the store to the handler and its hooks: checkers refuse what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.checkers import OF_PYRIGHT, for_pyright, under_mypy, under_pyright

PROGRAM = for_pyright("""\
from __future__ import annotations
from collections.abc import Sequence
from typing import Any
import msgspec
from stowhand import Worker, WorkerOptions
from stowhand.handler import Attempt, Handler
from stowhand.table import Budget
from stowhand.protocols.handler import PostHandle, PreHandle
from stowhand.table import TableOptions, TableStore

class Upload(msgspec.Struct):
    id: int
    size: int

class Other(msgspec.Struct):
    id: int

uploads = TableStore("postgresql:///shop", TableOptions(name="uploads", table_name="uploads", record=Upload))
plain = TableStore("postgresql:///shop", TableOptions(name="uploads", table_name="uploads"))

def read(row: Sequence[Any]) -> Upload:
    return Upload(*row)

scanned = TableStore(
    "postgresql:///shop", TableOptions(name="u", table_name="u", column_expressions=["id", "size"], scan=read)
)

async def index(ctx: Attempt[Upload], record: Upload) -> None: ...
async def loose(ctx: Attempt[Any], record: Any) -> int: return 1
async def untyped(ctx: Attempt, record: Upload) -> None: ...
async def wide(ctx: Attempt[object], record: object) -> None: ...
async def text(ctx: Attempt[Any], record: str) -> None: ...
async def row(ctx: Attempt[Any], record: dict[str, Any]) -> None: ...
def forgotten(ctx: Attempt[Any], record: Upload) -> None: ...

class Index(Handler[Upload], PreHandle[Upload], PostHandle[Upload]):
    async def handle(self, ctx: Attempt[Upload], record: Upload) -> None: ...
    async def pre_handle(self, ctx: Attempt[Upload], record: Upload) -> None: ...
    async def post_handle(self, ctx: Attempt[Upload], record: Upload) -> None: ...

class Simple:
    async def handle(self, ctx: Attempt[Any], record: Upload) -> None: ...

class OfOthers:
    async def handle(self, ctx: Attempt[Any], record: Other) -> None: ...

class WrongHook(Handler[Upload], PreHandle[Upload]):
    async def handle(self, ctx: Attempt[Upload], record: Upload) -> None: ...
    async def pre_handle(self, ctx: Attempt, record: str) -> None: ...  # E override P reportIncompatibleMethodOverride

def size_of(upload: Upload) -> float:
    return upload.size

budget = Budget[Upload](100, cost=lambda upload: upload.size, column="size")

def right() -> None:
    Worker(uploads, index)
    Worker(uploads, loose)
    Worker(uploads, untyped)
    Worker(uploads, wide)
    Worker(uploads, Index(), WorkerOptions(concurrency=2))
    Worker(uploads, Simple())
    Worker(uploads, budget.around(index))
    Worker(uploads, Budget(100, cost=lambda upload: upload.size, column="size").around(index))
    Worker(uploads, Budget(100, cost=size_of, column="size").around(index))
    Worker(scanned, index)
    Worker(plain, row)
    Worker(plain, loose)

async def asked() -> None:
    record: list[Upload] = await uploads.scan_all([])
    rows: list[dict[str, Any]] = await plain.scan_all([])
    await uploads.requeue(record[0], after=3)
    del rows

def wrong() -> None:
    Worker(uploads, text)  # E arg-type P reportArgumentType
    Worker(uploads, row)  # E arg-type P reportArgumentType
    Worker(uploads, forgotten)  # E arg-type P reportArgumentType
    Worker(uploads, OfOthers())  # E arg-type P reportArgumentType
    Worker(plain, index)  # E arg-type P reportArgumentType
    Worker(scanned, text)  # E arg-type P reportArgumentType
    Worker(uploads, budget.around(text))  # E arg-type P reportArgumentType
    TableOptions(name="u", table_name="u", record=Upload, unique_idz=True)  # E call-arg P reportCallIssue
""")


@pytest.mark.parametrize("checker", [under_mypy, pytest.param(under_pyright, marks=OF_PYRIGHT)])
def test_a_checker_refuses_handlers_of_other_records_and_nothing_else(checker: object, tmp_path: Path) -> None:
    mypy = checker is under_mypy
    result = (under_mypy if mypy else under_pyright)(PROGRAM, tmp_path)
    wanted = {
        number: {codes[0] if mypy else codes[1]}
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if (codes := line.partition("# E ")[2].split(" P "))[0]
    }
    assert result == wanted
