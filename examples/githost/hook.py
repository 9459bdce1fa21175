"""The post-receive hook: for each ref of a push, one transaction with the event, the job and the notification.

git runs it with the number of the repository, and gives it "OLD NEW REF" lines. The push has happened already: what
goes wrong here is said to whoever pushed, does not hold him up, and is found by push:sweep.
"""

from __future__ import annotations

import asyncio
import os
import sys

import psycopg
from git import readable
from jobs import URL, record_push

from stowhand import StowhandError

PATIENCE = float(os.environ.get("GITHOST_PATIENCE", "5"))
"""Seconds that a push waits for the database at most, whatever is the matter with it."""


async def record(repository: int, left: list[str]) -> None:
    """Each line that is dealt with is taken from the list. Raises psycopg.Error, StowhandError, once nothing goes."""
    async with await psycopg.AsyncConnection.connect(URL, autocommit=True, application_name="githost") as connection:
        while left:
            old, new, ref = left[0].split(" ", 2)
            try:
                async with connection.transaction():
                    await record_push(connection, repository, ref, old, new)
            except (psycopg.Error, StowhandError) as error:
                if connection.closed:
                    raise
                complain(ref, error)
            left.pop(0)


async def main(repository: int) -> None:
    left = [readable(line) for line in sys.stdin.buffer.read().split(b"\n") if line]
    total = len(left)

    def give_up(why: object) -> None:
        complain(f"{len(left)} of {total} refs", why)
        # At once: whatever hangs (a network, a resolver's thread) would keep git waiting.
        os._exit(1)

    asyncio.get_running_loop().call_later(PATIENCE, give_up, f"no answer within {PATIENCE:g} s")
    try:
        await record(repository, left)
    except (psycopg.Error, StowhandError) as error:
        give_up(error)


def complain(what: str, why: object) -> None:
    """git shows it to whoever pushed."""
    said = " ".join(str(why).split())
    print(f"githost: {what} not recorded yet; the next sweep will do it: {said}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
