"""``python -m tests.service.without_metrics worker …``: the program, where prometheus-client is not installed."""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.modules["prometheus_client"] = None  # type: ignore[assignment]
    from stowhand.cli import main

    sys.exit(main())
