"""What a lent store leaves to the server, and forgets."""

from __future__ import annotations

import msgspec

from stowhand.jobs.lease import Lease
from stowhand.remote import HttpStore
from stowhand.remote.client import claims
from stowhand.remote.client.claims import HeldProofs
from stowhand.remote.client.heartbeats import HttpHeartbeats
from stowhand.remote.wire import ClaimedRecord
from tests.conftest import Run
from tests.remote.client.canned import CannedServer, reply


def test_heartbeat_methods_of_the_server_send_no_request(run: Run) -> None:
    async def ask(heartbeats: HttpHeartbeats) -> None:
        await heartbeats.check_writable()
        await heartbeats.check()
        await heartbeats.maintain()
        assert not await heartbeats.reset_stalled(0.0)
        await heartbeats.close()

    with CannedServer(reply({})) as server:
        run(ask(HttpStore(server.url).heartbeats()))
        assert server.heads == []


def test_the_number_of_kept_proofs_is_limited() -> None:
    kept = HeldProofs()
    for number in range(claims.MAX_ENDED_PROOFS + 10):
        lease = Lease(number, "t", 1)
        record = msgspec.Raw(b"null")
        lent = ClaimedRecord(
            lease=lease, authorization="a", record=record, kind="job", task="t", attempts=1, max_attempts=1
        )
        kept.keep([lent])
        kept.end([(number, "t")])
    assert len(kept) == 0
    assert kept.of(Lease(0, "t", 1)).authorization == ""
    assert kept.of(Lease(claims.MAX_ENDED_PROOFS, "t", 1)).authorization == "a"
