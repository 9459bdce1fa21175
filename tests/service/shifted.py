"""``python -m tests.service.shifted FILE worker …``: ``stowhand`` on stores whose clock is ahead of the machine's.

FILE says by how many seconds, at any time: so a minute comes when a test wants it.
"""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from stowhand.app.settings.settings import StoreSettings
from stowhand.cli import main
from stowhand.clock import wall_clock
from stowhand.protocols.store import StoreOptions

CHOSEN: Any = vars(StoreSettings)["options"]
FILE = Path(sys.argv.pop(1))


def ahead() -> datetime:
    """What the store's clock shows."""
    return wall_clock() + timedelta(seconds=float(FILE.read_text()))


def options(self: StoreSettings) -> StoreOptions:
    """What was asked for, and that clock."""
    chosen: StoreOptions = CHOSEN.__get__(self)
    return msgspec.structs.replace(chosen, pinned=ahead)


if __name__ == "__main__":
    StoreSettings.options = property(options)  # type: ignore[assignment]
    main()
