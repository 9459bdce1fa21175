"""What each store offers: the one table of exceptions. docs/explanation/stores.md says the same, and a test proves it.

A store that is not named here offers everything of store.py and queue_store.py.
"""

from __future__ import annotations

HTTP_SKIPS_FILES = frozenset(
    {
        "test_actions",
        "test_administration",
        "test_explaining",
        "test_foreign_leases",
        "test_history",
        "test_inspect",
        "test_lending",
        "test_pausing",
        "test_purging",
        "test_retrying",
        "test_reset",
        "test_schema",
        "test_timetable",
        "test_watching",
    }
)
"""Files of this suite that are about little else than what is not offered over HTTP."""

HTTP_SKIPS: dict[str, str] = {
    "test_no_other_settlement_changes_the_payload": "no worker sends such endings, and the server refuses them",
}
"""Test -> why it cannot hold over HTTP."""
