"""The backend's C++ under AddressSanitizer, LeakSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

SANITIZERS = ["address", pytest.param("thread", marks=pytest.mark.slow)]  # each takes a minute to build

# The programs that run behaviors, and what they say with `--list`.
BEHAVIORS = {
    "data_path_batches": [
        "equal_shapes_are_stacked",
        "outputs_may_lie_in_the_batch",
        "different_shapes_lie_apart",
        "an_output_may_have_a_column_for_each_datatype",
        "every_datatype_comes_back",
        "bytes_come_back",
        "missing_inputs_are_left_out",
        "pieces_are_joined",
        "empty_tensors_come_back",
        "models_without_batches_have_no_rows",
        "metadata_reaches_the_worker",
        "statistics_are_reported",
        "options_reach_the_worker",
        "response_parameters_reach_the_client",
    ],
    "data_path_built_batches": [
        "requests_become_a_batch_when_the_server_has_no_more",
        "an_instance_looks_for_more_once_if_the_last_batch_was_larger",
        "a_full_batch_is_executed_at_once",
        "a_request_with_too_many_rows_begins_another_batch",
        "a_request_with_other_shapes_begins_another_batch",
        "a_request_with_other_inputs_begins_another_batch",
        "requests_of_clients_that_have_gone_are_left_out",
        "an_instance_looks_for_the_next_request_for_a_while",
        "threads_do_not_spin_for_requests_while_workers_need_the_processors",
        "one_of_several_instances_holds_requests_during_a_short_batch",
        "requests_are_released_once_a_batch_takes_long",
        "a_full_batch_leaves_requests_to_other_instances",
        "a_batch_that_takes_long_to_copy_holds_no_requests",
        "requests_are_released_before_an_instance_waits_for_its_worker",
        "functions_that_take_long_hold_no_requests",
        "an_instance_that_is_removed_executes_its_last_batch",
        "each_request_is_a_batch_where_the_guard_cannot_call",
    ],
    "data_path_doorbell": [
        "batches_of_any_size_come_back",
        "a_worker_that_hangs_up_is_replaced",
    ],
    "data_path_failures": [
        "bad_requests_fail_alone",
        "strings_that_change_while_they_are_read_fail_their_batch",
        "without_a_driver_tensors_of_gpus_fail",
        "requests_go_back_to_the_server",
        "failures_reach_their_requests",
        "nonsense_from_the_worker_fails_the_batch",
        "a_dead_worker_is_replaced",
        "a_process_that_is_being_started_again_is_waited_for",
        "a_model_is_loaded_while_its_process_is_being_started_again",
        "nobody_waits_for_a_process_whose_requests_are_cancelled",
        "loading_fails_without_a_worker",
    ],
    "data_path_gpu": [
        "inputs_in_the_memory_of_a_gpu_are_copied",
        "outputs_are_copied_into_the_memory_of_a_gpu",
        "tensors_stay_on_their_gpu",
        "outputs_that_cannot_be_opened_fail_their_batch",
    ],
    "data_path_stress": [
        "mutated_answers_never_crash",
        "kept_batches_stay_as_they_are",
        "results_stay_until_they_are_answered",
        "instances_run_side_by_side",
        "instances_share_their_workers",
    ],
    "concurrent_executor_responses": [
        "answers_come_in_any_order",
        "every_input_comes_back",
        "models_without_batches_are_served",
        "a_batch_waits_for_room",
        "streams_have_any_number_of_responses",
        "only_requested_outputs_are_sent",
        "a_failure_ends_its_request_in_mid_stream",
        "others_may_follow_a_failure",
        "the_detail_of_a_failure_is_logged",
        "requests_go_back_to_the_server",
        "response_parameters_travel_with_each_response",
        "a_batch_waits_until_the_one_before_has_returned",
        "a_result_responds_to_all_requests",
        "a_batch_waits_until_the_ones_before_are_taken",
        "only_streams_may_end_with_nothing",
        "statistics_are_reported_once",
    ],
    "concurrent_executor_cancellation": [
        "a_cancelled_request_is_answered_and_keeps_its_place",
        "a_request_whose_time_has_passed_is_answered",
        "cancelled_requests_are_not_sought_in_later_batches",
        "a_sequential_batch_is_notified_of_cancelling",
        "a_client_that_has_left_is_sent_one_thing",
        "a_result_leaves_cancelled_requests_out",
    ],
    "concurrent_executor_failures": [
        "bad_requests_take_no_place",
        "outputs_that_cannot_be_copied_end_the_request",
        "a_worker_that_hangs_up_fails_what_is_in_flight",
        "unloading_answers_what_is_in_flight",
        "idle_instances_end",
        "nonsense_fails_what_is_in_flight",
        "results_out_of_turn_fail_what_is_in_flight",
        "a_worker_that_takes_nothing_ends",
        "outputs_that_do_not_fit_their_shape_fail_alone",
        "a_worker_that_does_not_read_is_served",
        "execution_goes_on_after_a_worker_that_does_not_read_hangs_up",
        "a_broken_connection_ends_its_call_chains",
    ],
    "concurrent_executor_short_batches": [
        "batches_wait_while_they_are_short",
        "large_batches_wait_only_if_they_call_other_models",
        "batches_that_take_long_once_they_wait_stop_waiting",
        "the_instances_thread_receives_their_results",
        "a_batch_that_is_not_short_does_not_keep_the_next",
        "a_worker_that_hangs_up_fails_the_batch",
        "a_worker_that_hangs_up_between_batches_is_replaced",
        "nonsense_fails_the_batch",
    ],
    "concurrent_executor_stress": [
        "mutated_answers_never_crash",
        "instances_run_side_by_side",
    ],
    "worker_supervisor": [
        "one_process_handles_all_commands",
        "a_model_is_asked_whether_it_is_ready_if_it_wants_to_be",
        "a_process_that_ends_is_started_again",
        "a_model_that_does_not_load_is_an_error",
        "a_process_that_ends_at_its_start_is_an_error",
        "a_program_that_is_missing_is_an_error",
        "a_process_that_cannot_have_its_files_is_an_error",
        "a_start_that_takes_too_long_is_ended",
        "waiting_requests_fail_with_the_reason_of_a_failed_start",
        "nobody_waits_for_ever",
        "a_supervisor_ends_while_its_process_is_being_started_again",
        "a_supervisor_ends_while_it_pauses",
        "processes_are_killed_under_load",
    ],
    "model_settings": [
        "warmups_are_counted",
        "inputs_may_vary",
        "queues_may_have_policies",
        "only_models_with_batches_have_them_built",
        "an_output_is_named_if_responses_are_cached",
        "inputs_have_the_batch_before_their_dimensions",
    ],
    "memory_copy": [
        "blocks_of_any_size_are_copied_whole",
        "threads_copy_at_the_same_time",
    ],
    "services_calls": [
        "calls_come_back",
        "replies_are_the_workers_until_it_releases_them",
        "what_is_asked_reaches_the_server",
        "an_instance_that_polls_receives_calls",
        "an_instance_that_ends_polling_leaves_no_call",
        "strings_have_their_lengths_first",
        "streams_have_any_number_of_responses",
        "errors_reach_the_worker",
        "without_a_driver_tensors_of_gpus_fail_their_call",
        "cancelling_reaches_the_server",
        "cycles_are_refused",
        "metrics_go_with_the_last_that_has_them",
        "a_model_that_is_not_there_is_not_ready",
        "a_traced_call_reports_its_times",
        "models_are_loaded_and_lines_logged",
    ],
    "services_failures": [
        "a_worker_that_hangs_up_has_its_calls_cancelled",
        "an_instance_that_ends_has_its_calls_cancelled",
        "the_backend_ends_behind_its_calls",
        "a_worker_that_does_not_read_is_served",
        "nonsense_ends_the_channel_alone",
        "a_traced_call_that_is_refused_does_not_keep_its_channel",
        "a_model_that_gets_no_thread_fails_that_call_alone",
    ],
    "services_stress": [
        "mutated_messages_never_crash",
        "many_ask_at_once",
        "many_ask_instances_that_poll",
    ],
}


@pytest.fixture(scope="module")
def programs(native: Any, request: pytest.FixtureRequest) -> dict[str, Path]:
    """The programs of the selected tests; CMake builds them side by side."""
    selected = [item for item in request.session.items if isinstance(item, pytest.Function)]
    parameters = [item.callspec.params for item in selected if item.module is request.module]
    names = {f"{each.get('program', 'arena_stress')}_{each.get('sanitizer', 'address')}" for each in parameters}
    return dict(zip(sorted(names), native.build(*sorted(names), folder_name="sanitizers"), strict=True))


def output_of(native: Any, program: Path, *arguments: str) -> str:
    """The output of a program that succeeds."""
    done = native.run(program, *arguments)
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_arena_under_stress(native: Any, programs: dict[str, Path], sanitizer: str) -> None:
    assert "trims" in output_of(native, programs[f"arena_stress_{sanitizer}"], "5000")


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param("response_queue_stress", id="the queue of responses loses none"),
        pytest.param("model_config", id="clients see the batcher whose work the backend does"),
        pytest.param("hanging_calls", id="each call that hangs is counted once"),
        pytest.param("streams", id="streams end between responses"),
    ],
)
def test_the_guard(native: Any, programs: dict[str, Path], program: str, sanitizer: str) -> None:
    assert "passed" in output_of(native, programs[f"{program}_{sanitizer}"])


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("program", ["batching_stress"])
def test_an_idle_instance_gets_what_is_queued(
    native: Any, programs: dict[str, Path], program: str, sanitizer: str
) -> None:
    late, _, built = output_of(native, programs[f"{program}_{sanitizer}"]).split()
    assert late == "late=0"
    assert float(built.removeprefix("requests_per_built_batch=")) > 1.1


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize("program", ["event_loop_stress"])
def test_the_event_loop_serves_clients_of_all_kinds(
    native: Any, programs: dict[str, Path], program: str, sanitizer: str
) -> None:
    changes, end = output_of(native, programs[f"{program}_{sanitizer}"]).split()
    assert end == "passed"
    assert float(changes.removeprefix("changes=")) < 0.1  # of what the kernel reports, a request


@pytest.mark.parametrize(
    ("sanitizer", "finding"), [("address", "did not hold their data"), ("thread", "ThreadSanitizer: data race")]
)
def test_a_peer_that_reads_what_it_has_released_is_found(
    native: Any, programs: dict[str, Path], sanitizer: str, finding: str
) -> None:
    done = native.run(programs[f"arena_stress_{sanitizer}"], "5000", "--release-early")
    assert done.returncode != 0
    assert finding in done.stdout


@pytest.mark.parametrize("program", BEHAVIORS)
def test_all_behaviors_are_tested(native: Any, programs: dict[str, Path], program: str) -> None:
    done = native.run(programs[f"{program}_address"], "--list")
    assert done.stdout.split() == BEHAVIORS[program]


@pytest.mark.parametrize("sanitizer", SANITIZERS)
@pytest.mark.parametrize(
    ("program", "behavior"), [(program, each) for program, behaviors in BEHAVIORS.items() for each in behaviors]
)
def test_behavior(
    native: Any, programs: dict[str, Path], tmp_path: Path, program: str, behavior: str, sanitizer: str
) -> None:
    done = native.run(programs[f"{program}_{sanitizer}"], behavior, folder=tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stdout == ""
