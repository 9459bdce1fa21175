"""What each store offers: the one table of exceptions. docs/explanation/stores.md says the same, and a test proves it.

A store that is not named here offers everything of store.py and queue_store.py.
"""

from __future__ import annotations

NOT_OFFERED: dict[str, frozenset[str]] = {
    "table of yours": frozenset(
        {
            # inserting, looking, changing and scheduling are the application's, in SQL
            *("enqueue", "enqueue_many", "add_jobs", "enqueue_in", "connection", "seat", "flow_tables"),
            *("get", "list", "oldest_due", "retry", "cancel", "remove", "remove_key"),
            *("complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "force_unlock_workers", "add_built_in"),
            *("retry_jobs", "cancel_jobs", "remove_jobs"),
            *("now", "register", "known_items", "schedule", "ticks"),
            "retry_failed",
            *("pause_task", "resume_task", "pause_unqueued", "resume_unqueued", "pauses"),
            *("pause_queue", "resume_queue", "queues", "purge", "workers", "explain", "figures"),
            # and so is the table
            *("install", "status", "plan", "uninstall", "foreign_changes"),
            *("default_max_attempts", "set_default_max_attempts"),
        }
    ),
    "redis": frozenset(
        {
            # creating, looking and administering are the flow's: create_job, get_jobs, retry_jobs, delete_job
            *("enqueue", "enqueue_many", "add_jobs", "get", "list", "counts", "oldest_due"),
            *("retry", "cancel", "remove", "remove_key"),
            *("complete_jobs", "permanently_fail_jobs", "reschedule_jobs", "force_unlock_workers", "add_built_in"),
            *("retry_jobs", "cancel_jobs", "remove_jobs"),
            "retry_failed",
            *("pause_task", "resume_task", "pause_unqueued", "resume_unqueued", "pauses"),
            *("pause_queue", "resume_queue", "queues", "purge", "workers", "explain", "figures"),
            # no SQL, no transactions, no schema
            *(
                "enqueue_in",
                "connection",
                "seat",
                "flow_tables",
                "install",
                "status",
                "plan",
                "uninstall",
                "foreign_changes",
            ),
            *("default_max_attempts", "set_default_max_attempts"),
            # nothing recurs
            *("now", "register", "known_items", "schedule", "ticks"),
        }
    ),
    "http": frozenset(
        {
            # done by the server, for all of its workers
            "reset_stalled",
            "check",
            "maintain",
            # done where the jobs are kept
            "enqueue_in",
            "connection",
            "flow_tables",
            "now",
            "register",
            "known_items",
            "schedule",
            "ticks",
            "list",
            "counts",
            "oldest_due",
            "retry",
            "cancel",
            "remove",
            "remove_key",
            "complete_jobs",
            "permanently_fail_jobs",
            "reschedule_jobs",
            *("force_unlock_workers", "add_built_in"),
            *("retry_jobs", "cancel_jobs", "remove_jobs"),
            *("foreign_changes", "default_max_attempts", "set_default_max_attempts"),
            "install",
            "plan",
            "uninstall",
            "retry_failed",
            *("pause_task", "resume_task", "pause_unqueued", "resume_unqueued", "pauses"),
            *("pause_queue", "resume_queue", "queues", "purge", "workers", "explain", "figures"),
        }
    ),
}
"""By store: methods that it refuses, or (those of the heart) that do nothing because somebody else does it."""

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
