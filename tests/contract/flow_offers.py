"""What of this suite does not hold for a flow in Redis, and why."""

from __future__ import annotations

FILES = frozenset(
    {
        "test_actions",
        "test_add_jobs",
        "test_administration",
        "test_context",
        "test_enqueue",
        "test_explaining",
        "test_foreign_leases",
        "test_history",
        "test_inspect",
        "test_keys",
        "test_lending",
        "test_pausing",
        "test_purging",
        "test_refusals",
        "test_retrying",
        "test_schema",
        "test_serial_queues",
        "test_timetable",
        "test_watching",
    }
)
"""Creating jobs, looking at them and retrying them are the flow's, and tested with it; the rest it has not. Leases of
others are locks, of which only two looks can tell: ``tests/flows/redis/test_sweep.py``."""

EPOCH = "an epoch is a moment of the server's clock"
KEYS = "a flow's job has no key"
QUEUES = "its queues are not serial"
CANCEL = "nobody cancels it from outside: it is deleted"
MOMENTS = "its hash does not say when it started or ended"
MESSAGE = "the message of a failure that is tried again is logged, and not kept: the hash holds what the document knows"
LIMITS = "retries and resets are its queue's"
LOCK = "a lease is a lock that expires on the server: when it has ended, it is gone"
CLOCK = "the server's clock goes on while the test's stands still"
HISTORY = "it is kept for its key life"
FOLLOWS = "what follows is its next queue"
REST = "nothing takes the place of its attributes"
RETRY = "a retry by hand is the flow's, and tested with it"
MARK = "the mark of a settlement is of the whole call"

TESTS = {
    "test_one_worker_in_four_is_to_make_way_at_once": "counted by queue: tests/flows/redis/test_sweep.py",
    "test_a_rest_that_cannot_be_stored_is_unwritten_alone_and_changes_nothing": REST,
    "test_a_claim_moves_the_job_to_processing_under_its_lease": EPOCH,
    "test_the_claimed_record_is_the_row_as_it_was_committed": KEYS,
    "test_jobs_are_claimed_by_priority_then_run_time_then_id": "by priority, then as they stand in the list",
    "test_a_future_job_waits_until_its_moment": CLOCK,
    "test_an_errored_job_is_claimed_again_when_it_is_due": EPOCH,
    "test_only_waiting_jobs_are_claimed[processing]": LOCK,
    "test_jobs_with_a_forbidden_flag_stay": "a flow's job has no flags",
    "test_the_last_attempt_is_counted_and_no_more": LIMITS,
    "test_the_error_of_an_earlier_attempt_stays_while_the_next_one_runs": MESSAGE,
    "test_without_a_history_a_repeat_leaves_no_trace_and_is_unknown": HISTORY,
    "test_a_settled_job_that_was_retried_still_knows_its_settlement": RETRY,
    "test_one_token_on_two_jobs_guards_each_of_them": LOCK,
    "test_an_expired_lease_that_nobody_has_taken_may_still_settle": LOCK,
    "test_the_epoch_grows_at_every_claim_and_every_take_away": EPOCH,
    "test_a_revived_job_goes_on_counting_epochs": KEYS,
    "test_a_canceled_job_that_came_back_goes_on_counting_epochs": RETRY,
    "test_a_lease_named_twice_in_one_release_is_released_once": CANCEL,
    "test_an_expired_lease_that_was_not_reset_is_renewed": LOCK,
    "test_a_beat_tells_who_was_asked_to_cancel_and_still_renews_it": CANCEL,
    "test_a_running_job_whose_key_was_removed_is_not_interrupted": KEYS,
    "test_a_claim_of_suspects_takes_nothing_else": EPOCH,
    "test_a_suspect_obeys_tasks_flags_and_run_time": "a flow's job has no flags",
    "test_a_suspect_that_is_retried_by_hand_is_one_no_longer": RETRY,
    "test_a_suspect_can_be_canceled": CANCEL,
    "test_jobs_of_one_queue_never_run_side_by_side": QUEUES,
    "test_a_beat_and_a_reset_agree_on_who_holds_the_job": CANCEL,
    "test_a_cancellation_is_never_lost_to_a_settlement": CANCEL,
    "test_a_released_job_is_as_it_was_before_its_claim": KEYS,
    "test_a_released_job_is_due_at_once": EPOCH,
    "test_releasing_a_retry_gives_back_that_attempt_only": MESSAGE,
    "test_a_release_of_a_job_that_was_asked_to_cancel_cancels_it": CANCEL,
    "test_a_release_of_a_job_whose_key_was_removed_cancels_it": KEYS,
    "test_a_release_of_a_job_whose_key_was_taken_runs_it_again": KEYS,
    "test_an_abandoned_token_never_claims_again": EPOCH,
    "test_abandoning_a_job_that_was_asked_to_cancel_cancels_it": CANCEL,
    "test_a_lease_is_stalled_only_after_its_deadline_and_the_slack": LOCK,
    "test_a_reset_gives_the_attempt_back_and_counts_the_death": KEYS,
    "test_only_running_jobs_are_reset[errored]": "a sweep brings what is ready to the front",
    "test_a_job_that_kills_its_worker_too_often_fails_with_the_reason": LIMITS,
    "test_deaths_are_counted_from_the_last_attempt_that_settled": LIMITS,
    "test_a_job_that_was_asked_to_cancel_is_canceled_by_its_reset": CANCEL,
    "test_a_job_whose_key_was_removed_is_canceled_by_its_reset": KEYS,
    "test_a_job_whose_key_was_taken_runs_again_after_its_reset": KEYS,
    "test_a_short_lease_is_honoured_exactly": CLOCK,
    "test_completed_goes_to_the_history_with_its_result": KEYS,
    "test_a_completed_job_keeps_the_error_of_an_earlier_attempt": MESSAGE,
    "test_completing_frees_the_key": KEYS,
    "test_errored_waits_for_its_delay_by_the_stores_clock": KEYS,
    "test_a_delay_is_kept_to_the_microsecond": "to the millisecond",
    "test_failed_stays_among_the_living_with_its_key": KEYS,
    "test_a_snooze_gives_the_attempt_back": KEYS,
    "test_canceled_goes_to_the_history_with_its_reason_and_frees_the_key": KEYS,
    "test_what_is_left_of_a_batch_takes_the_payloads_place": REST,
    "test_what_is_left_of_a_batch_is_what_the_next_attempt_gets": REST,
    "test_what_is_left_of_a_batch_that_was_asked_to_cancel_is_what_comes_back": REST,
    "test_no_other_settlement_changes_the_payload": "such a settlement is refused: that job fails",
    "test_verdicts_come_in_the_order_of_the_batch": MARK,
    "test_what_follows_is_enqueued_with_the_settlement": FOLLOWS,
    "test_what_follows_obeys_the_rules_of_keys": KEYS,
    "test_a_repeated_settlement_enqueues_what_follows_once": FOLLOWS,
    "test_a_settlement_that_cannot_be_written_is_unwritten_alone": MOMENTS,
    "test_without_a_history_what_completed_is_gone": HISTORY,
    "test_without_a_history_what_was_canceled_is_gone": HISTORY,
    "test_without_a_history_what_follows_is_enqueued_all_the_same": FOLLOWS,
    "test_a_sleeper_in_another_process_is_woken[by_retry]": RETRY,
    "test_a_sleeper_in_another_process_is_woken[by_key]": KEYS,
    "test_a_sleeper_in_another_process_is_woken[by_a_freed_queue]": QUEUES,
    "test_a_sleeper_in_another_process_is_woken[by_a_queue_freed_by_an_error]": QUEUES,
    "test_a_sleeper_in_another_process_is_woken[by_a_queue_freed_by_a_snooze]": QUEUES,
}
"""Test, with its case in brackets where the others hold -> why."""
