"""``python -m tests.service.shifted FILE worker …``: ``stowhand`` on stores whose clock is ahead of the machine's.

FILE says by how many seconds, at any time: so a minute comes when a test wants it.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path

import msgspec

from stowhand.app.settings.settings import StoreSettings
from stowhand.cli import main
from stowhand.clock import wall_clock
from stowhand.protocols.store import StoreOptions

OPTIONS = StoreSettings.options
FILE = Path(sys.argv.pop(1))


def ahead() -> datetime:
    """What the store's clock shows."""
    return wall_clock() + timedelta(seconds=float(FILE.read_text()))


def options(self: StoreSettings) -> StoreOptions:
    """What was asked for, and that clock."""
    return msgspec.structs.replace(OPTIONS(self), pinned=ahead)


if __name__ == "__main__":
    StoreSettings.options = options  # type: ignore[method-assign]
    main()
