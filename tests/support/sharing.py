"""How a distributed run is shared out: each long test by itself, and of the rest whole files.

If all tests were shared out one by one, the process that does it would look through everything it has given away
after each of nine thousand; and what the tests of a file share would be made in each process.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from tests.support import slow_tests


class ByFile(LoadGroupScheduling):
    """Shares out in the order of the collection, if `--no-loadscope-reorder` is given. Groups stay together."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._took = slow_tests.read()

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, super()._split_scope(nodeid), self._took)


def scope_of(nodeid: str, group: str, took: Mapping[str, float]) -> str:
    """What a test is shared out with. `group`: its own, else the test itself."""
    alone = group != nodeid or took.get(nodeid, 0.0) >= slow_tests.LONG
    return group if alone else slow_tests.file_of(nodeid)
