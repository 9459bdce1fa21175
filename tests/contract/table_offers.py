"""What of this suite does not hold for a user's table, and why. Everything else does, on PostgreSQL and on SQLite."""

from __future__ import annotations

FILES = frozenset(
    {
        "test_actions",
        "test_add_jobs",
        "test_administration",
        "test_context",
        "test_enqueue",
        "test_explaining",
        "test_history",
        "test_inspect",
        "test_keys",
        "test_lending",
        "test_pausing",
        "test_purging",
        "test_retrying",
        "test_schema",
        "test_serial_queues",
        "test_timetable",
        "test_watching",
    }
)
"""Inserting, looking, administering and scheduling are the application's, with its own SQL."""

KEYS = "a record has no key"
QUEUES = "a record has no queue"
FLAGS = "a record has no flags"
OWN_LIMITS = "limits are the table's, not a record's"
EPOCH = "an epoch is a moment, and time stands still here"
MESSAGE = "a claim empties failure_message, as in the founding system"
RESETS = "num_resets is never taken back, as in the founding system"
FOLLOWS = "nothing can be enqueued along with a settlement: a clear refusal"
RETRY = "an UPDATE of the application's"
TOKENS = "nowhere to remember a token: what such a claim took comes back when it is stalled"
LEASE = "a lease lasts stalled_max_age, whatever a worker asks for"

TESTS = {
    "test_a_claim_that_finds_nothing_tells_of_foreign_leases_if_it_was_asked": "its heart looks",
    "test_a_running_job_whose_key_is_taken_or_removed_and_which_fails_is_told_as_recorded": KEYS,
    "test_a_claim_moves_the_job_to_processing_under_its_lease": EPOCH,
    "test_a_claim_with_conditions_is_refused_and_takes_nothing": "it takes conditions",
    "test_the_claimed_record_is_the_row_as_it_was_committed": OWN_LIMITS,
    "test_an_errored_job_is_claimed_again_when_it_is_due": EPOCH,
    "test_jobs_with_a_forbidden_flag_stay": FLAGS,
    "test_an_abandoned_token_claims_nothing": TOKENS,
    "test_the_last_attempt_is_counted_and_no_more": OWN_LIMITS,
    "test_the_error_of_an_earlier_attempt_stays_while_the_next_one_runs": MESSAGE,
    "test_another_outcome_for_a_settled_lease_changes_nothing": "lost, not already settled: the row says another thing",
    "test_a_repeat_of_a_recorded_settlement_is_known_as_one[snooze]": "what waits again bears no mark: lost",
    "test_a_lease_settled_twice_in_one_batch_is_settled_once[snooze]": "as above",
    "test_without_a_history_a_repeat_leaves_no_trace_and_is_unknown": "records stay",
    "test_a_settled_job_that_was_retried_still_knows_its_settlement": RETRY,
    "test_the_epoch_grows_at_every_claim_and_every_take_away": EPOCH,
    "test_a_revived_job_goes_on_counting_epochs": KEYS,
    "test_a_canceled_job_that_came_back_goes_on_counting_epochs": RETRY,
    "test_a_lease_named_twice_in_one_release_is_released_once": "attempts of a canceled record are not kept",
    "test_a_running_job_whose_key_was_removed_is_not_interrupted": KEYS,
    "test_a_released_job_is_as_it_was_before_its_claim": KEYS,
    "test_a_released_job_is_due_at_once": EPOCH,
    "test_releasing_a_retry_gives_back_that_attempt_only": MESSAGE,
    "test_a_release_of_a_job_that_was_asked_to_cancel_cancels_it": KEYS,
    "test_a_release_of_a_job_whose_key_was_removed_cancels_it": KEYS,
    "test_a_release_of_a_job_whose_key_was_taken_runs_it_again": KEYS,
    "test_an_abandoned_token_never_claims_again": TOKENS,
    "test_a_reset_gives_the_attempt_back_and_counts_the_death": KEYS,
    "test_a_job_that_kills_its_worker_too_often_fails_with_the_reason": OWN_LIMITS,
    "test_deaths_are_counted_from_the_last_attempt_that_settled": RESETS,
    "test_a_job_that_was_asked_to_cancel_is_canceled_by_its_reset": KEYS,
    "test_a_job_whose_key_was_removed_is_canceled_by_its_reset": KEYS,
    "test_a_job_whose_key_was_taken_runs_again_after_its_reset": KEYS,
    "test_a_short_lease_is_honoured_exactly": LEASE,
    "test_completed_goes_to_the_history_with_its_result": KEYS,
    "test_a_completed_job_keeps_the_error_of_an_earlier_attempt": MESSAGE,
    "test_completing_frees_the_key": KEYS,
    "test_errored_waits_for_its_delay_by_the_stores_clock": KEYS,
    "test_failed_stays_among_the_living_with_its_key": KEYS,
    "test_a_snooze_gives_the_attempt_back": KEYS,
    "test_canceled_goes_to_the_history_with_its_reason_and_frees_the_key": KEYS,
    "test_every_settlement_takes_the_resets_back_to_nought": RESETS,
    "test_completing_several_at_once_takes_their_resets_back_too": RESETS,
    "test_what_is_left_of_a_batch_takes_the_payloads_place": KEYS,
    "test_what_is_left_of_a_batch_is_what_the_next_attempt_gets": KEYS,
    "test_what_is_left_of_a_batch_that_was_asked_to_cancel_is_what_comes_back": RETRY,
    "test_what_follows_is_enqueued_with_the_settlement": FOLLOWS,
    "test_what_follows_obeys_the_rules_of_keys": KEYS,
    "test_a_repeated_settlement_enqueues_what_follows_once": FOLLOWS,
    "test_a_rest_that_cannot_be_stored_is_unwritten_alone_and_changes_nothing": "its payload is its own",
    "test_a_settlement_that_cannot_be_written_is_unwritten_alone": "no result is kept",
    "test_without_a_history_what_completed_is_gone": "records stay",
    "test_without_a_history_what_was_canceled_is_gone": "records stay",
    "test_without_a_history_what_follows_is_enqueued_all_the_same": FOLLOWS,
    "test_a_cancellation_is_never_lost_to_a_settlement": "a late cancel is obeyed when the record's turn comes",
    "test_an_abandoned_claim_never_holds_a_job_however_they_race": TOKENS,
    "test_jobs_of_one_queue_never_run_side_by_side": QUEUES,
    "test_a_claim_of_suspects_takes_nothing_else": EPOCH,
    "test_a_suspect_obeys_tasks_flags_and_run_time": FLAGS,
    "test_a_suspect_that_settles_is_one_no_longer": RESETS,
    "test_a_suspect_that_is_retried_by_hand_is_one_no_longer": RETRY,
    "test_a_suspect_can_be_canceled": "a cancel is obeyed when the record's turn comes, or by the next sweep",
    "test_a_sleeper_in_another_process_is_woken[by_key]": KEYS,
    "test_a_sleeper_in_another_process_is_woken[by_retry]": RETRY,
    "test_a_sleeper_in_another_process_is_woken[by_a_freed_queue]": QUEUES,
    "test_a_sleeper_in_another_process_is_woken[by_a_queue_freed_by_an_error]": QUEUES,
    "test_a_sleeper_in_another_process_is_woken[by_a_queue_freed_by_a_snooze]": QUEUES,
    "test_a_locked_row_is_handed_back_later_and_the_others_at_once": OWN_LIMITS,
    "test_abandoning_a_token_says_whether_a_locked_row_is_still_held_by_it": OWN_LIMITS,
    "test_enqueueing_many_goes_on_beside_a_locked_row": KEYS,
}
"""Test, with its case in brackets where the others hold -> why."""
