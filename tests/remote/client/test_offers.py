"""What a lent store does not offer: the table of offers, the page of stores, and the store itself say the same."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from stowhand.errors import ConfigurationError
from stowhand.jobs.lease import Lease
from stowhand.remote.client import HttpStore, proofs
from stowhand.remote.client.heartbeats import HttpHeartbeats
from stowhand.remote.client.proofs import HeldProofs
from stowhand.remote.wire import Lent
from tests.conftest import Run
from tests.contract.offers import NOT_OFFERED
from tests.docs.pages import DOCS
from tests.remote.client.canned import Canned, reply

REFUSED = NOT_OFFERED["http"]
OF_THE_HEART = {name for name in REFUSED if hasattr(HttpHeartbeats, name)}


def test_every_call_that_is_not_offered_is_refused_with_the_place_where_it_is_done(run: Run) -> None:
    async def go() -> None:
        for name in sorted(REFUSED - OF_THE_HEART):
            call: Any = getattr(HttpStore("http://127.0.0.1:1"), name)
            wanted = [one for one in inspect.signature(call).parameters.values() if one.default is one.empty]
            with pytest.raises(ConfigurationError, match=r"not over HTTP.*the store itself"):
                await call(*(None for _ in wanted))

    run(go())


def test_what_a_heart_does_not_do_is_the_servers_and_asks_it_nothing(run: Run) -> None:
    async def ask(heartbeats: HttpHeartbeats) -> None:
        for name in sorted(OF_THE_HEART):
            call = getattr(heartbeats, name)
            answer = call(*(None for _ in inspect.signature(call).parameters))
            assert not (await answer if inspect.isawaitable(answer) else answer)
        await heartbeats.close()

    with Canned(reply({})) as server:
        run(ask(HttpStore(server.url).heartbeats()))
        assert server.asked == []


def test_the_page_of_stores_says_the_same() -> None:
    said: dict[str, bool] = {}
    for block in (DOCS / "explanation" / "stores.md").read_text().split("\n\n"):
        head, *lines = [line for line in block.splitlines() if line.startswith("|")] or [""]
        columns = [cell.strip() for cell in head.split("|")]
        if "HTTP" not in columns:
            continue
        for line in lines:
            cells = [cell.strip() for cell in line.split("|")]
            for name in re.findall(r"`(\w+)`", cells[1]):
                said.setdefault(name, re.match(r"no\b", cells[columns.index("HTTP")]) is not None)
    methods = {name for name, refused in said.items() if refused and hasattr(HttpStore, name)}
    assert methods == REFUSED - OF_THE_HEART
    for name in REFUSED:
        assert said[name], f"{name}: the page says that it is offered over HTTP"
    for name in ("claim", "settle", "wait", "enqueue", "get", "beat", "release", "abandon"):
        assert not said[name], name


def test_a_store_keeps_no_proof_of_what_has_ended_for_ever() -> None:
    kept = HeldProofs()
    for number in range(proofs.ENDED + 10):
        lease = Lease(number, "t", 1)
        kept.keep([Lent(lease=lease, authorization="a", record=None, kind="job", task="t", attempts=1, max_attempts=1)])
        kept.end([(number, "t")])
    assert len(kept) == 0
    assert kept.of(Lease(0, "t", 1)).authorization == ""
    assert kept.of(Lease(proofs.ENDED, "t", 1)).authorization == "a"
