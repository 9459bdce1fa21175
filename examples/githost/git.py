"""What the handlers ask git. Nothing here knows of jobs or of a database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

ABSENT = "0" * 40
"""What git writes for the id of a ref that is not there."""
_SUBJECT = 200
"""Characters of a commit's subject that are kept."""


class GitFailed(Exception):
    """Its message is what git said."""


async def git(path: str, *words: str, feed: str = "") -> list[str]:
    """The lines that ``git WORDS`` prints for the repository at ``path``. Canceled, it takes git with it.

    Raises GitFailed.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        "git", f"--git-dir={path}", *words, stdin=pipe, stdout=pipe, stderr=pipe
    )
    try:
        out, trouble = await process.communicate(feed.encode())
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise GitFailed(f"git {words[0]}: {readable(trouble).strip()}")
    return [readable(line) for line in out.split(b"\n") if line]


async def new_commits(path: str, tip: str, known: Iterable[str]) -> list[tuple[str, str]]:
    """(id, subject) of each commit that can be reached from ``tip`` and from none of ``known``, by id.

    Commits that are gone by now (forced away, and collected) count as none at all. Raises GitFailed.
    """
    if tip == ABSENT:
        return []
    asked = "\n".join([tip, *(f"^{one}" for one in known if one != ABSENT)]) + "\n"
    words = ("rev-list", "--ignore-missing", "--no-commit-header", "--format=%H %s", "--stdin")
    pairs = (line.partition(" ") for line in await git(path, *words, feed=asked))
    return sorted((commit, subject[:_SUBJECT]) for commit, _, subject in pairs)


async def refs(path: str) -> dict[str, str]:
    """The id that each ref has now. Raises GitFailed."""
    lines = await git(path, "for-each-ref", "--format=%(objectname) %(refname)")
    return {ref: commit for commit, _, ref in (line.partition(" ") for line in lines)}


async def size_kib(path: str) -> int:
    """KiB that the objects take on disk, loose and packed. Raises GitFailed."""
    counted = dict(line.split(": ") for line in await git(path, "count-objects", "-v"))
    return int(counted["size"]) + int(counted["size-pack"])


def exists(path: str) -> bool:
    """Is a repository there?"""
    return (Path(path) / "objects").is_dir()


def readable(said: bytes) -> str:
    """As text; names are bytes to git, and those that are not UTF-8 stay distinct."""
    return said.decode(errors="backslashreplace")
