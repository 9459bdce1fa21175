"""What a running handler is given where a table is lent: the execution log of its attempt."""

from __future__ import annotations

from stowhand.errors import LogRefused
from stowhand.execution_log import ExecutionLogEntry, bounded
from stowhand.store import Lease
from stowhand.stores.http.line import Line
from stowhand.stores.http.proofs import Proofs
from stowhand.stores.http.troubles import Refused
from stowhand.wire import Kind, LogChange, LogNumbers

_REFUSALS = (Kind.LOG_REFUSED, Kind.LEASE_LOST, Kind.UNKNOWN, Kind.TOO_LARGE, Kind.MALFORMED)


class RemoteAttempt:
    """``ctx.store``. Every change is guarded by the attempt's lease."""

    def __init__(self, line: Line, proofs: Proofs, lease: Lease) -> None:
        self._line, self._proofs, self._lease = line, proofs, lease

    async def add_execution_log_entry(self, entry: ExecutionLogEntry) -> int:
        """Append to the record's execution log; the entry's number: 1, 2, …

        What is too long is cut (of ``out`` the end is kept). When the reply is lost (StoreUnreachable) the entry may
        be there; it is not sent again. Raises LogRefused when the lease is gone.
        """
        numbers = await self._change(LogChange(proof=self._proofs.of(self._lease), add=(_fit(entry),)))
        if len(numbers) != 1:
            raise LogRefused(f"{self._line.base} answers one entry with {len(numbers)} numbers")
        return numbers[0]

    async def update_execution_log_entry(self, number: int, entry: ExecutionLogEntry) -> None:
        """Put this in the place of entry ``number``. Raises LogRefused, StoreUnreachable."""
        await self._change(LogChange(proof=self._proofs.of(self._lease), update=((number, _fit(entry)),)))

    async def _change(self, change: LogChange) -> tuple[int, ...]:
        try:
            return (await self._line.post("/v1/logs", change, LogNumbers)).numbers
        except Refused as refused:
            if refused.kind in _REFUSALS:
                raise LogRefused(str(refused)) from None
            raise


def _fit(entry: ExecutionLogEntry) -> ExecutionLogEntry:
    if entry.start_time.utcoffset() is None:
        raise LogRefused(f"start_time: {entry.start_time} has no time zone; give an aware datetime")
    return bounded(entry)
