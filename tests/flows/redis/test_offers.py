"""What a flow in Redis does not offer is the same in the code, in the suite's table, and on the page of stores."""

from __future__ import annotations

import re

from stowhand.flows.redis.heartbeats import RedisHeartbeats
from stowhand.flows.redis.store import FlowStore
from stowhand.protocols import operating, queue_store, store
from tests.contract.offers import NOT_OFFERED
from tests.support.sources import ROOT

SEAMS = (store.Store, queue_store.Producer, queue_store.Inspector, queue_store.Administrator, operating.Operator)
OTHERS = (queue_store.Timetable, queue_store.Schema, queue_store.QueueStore)


def said_of_redis() -> dict[str, bool]:
    """Method -> does the page refuse it?"""
    said: dict[str, bool] = {}
    for block in (ROOT / "docs/explanation/stores.md").read_text().split("\n\n"):
        lines = [[cell.strip() for cell in line.split("|")] for line in block.splitlines() if line.startswith("|")]
        if lines and "Redis" in lines[0] and "option" not in lines[0]:
            at = lines[0].index("Redis")
            for cells in lines[1:]:
                said |= {name: cells[at].startswith("no") for name in re.findall(r"`(\w+)`", cells[1])}
    return said


def test_code_suite_and_page_agree() -> None:
    said = said_of_redis()
    methods = {name for seam in (*SEAMS, *OTHERS) for name in vars(seam) if name in said}
    lacking = {name for name in methods if not hasattr(FlowStore, name)}
    assert {name for name in methods if said[name] and name != "check"} == lacking == NOT_OFFERED["redis"]


def test_a_heart_has_all_that_a_heart_has() -> None:
    assert {name for name in vars(store.Heartbeats) if not name.startswith("_")} <= set(dir(RedisHeartbeats))
