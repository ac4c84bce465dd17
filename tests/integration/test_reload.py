"""``pytriton run --reload``: a program that changes while its models are served."""

from __future__ import annotations

import signal
import statistics
import time

import pytest
from programs import SCALE, TENSORS, LoadOn, Program
from serving import wait_until

RELOADS = 50
CLIENTS = 4
LIMIT_S = 0.5
MARGIN = 3.0  # for a machine that does other things at the same time

WITH_HELPER = SCALE.replace("FACTOR = 2", "from helper import FACTOR")

WAITS_FOR_GATE = """
import pathlib, time

pathlib.Path("importing").touch()
while not pathlib.Path("gate").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def program(tmp_path):
    """Starts a program made of files, given by name."""
    started = []

    def start(*words, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.py").write_text(content)
        started.append(Program(tmp_path, "app.py", "--reload", *words).wait_until_serving())
        return started[-1]

    yield start
    for each in started:
        assert each.end() == 0, each.log
        each.__exit__()


def save(program, name, content):
    (program.folder / f"{name}.py").write_text(content)


def wait_for_response(program, model, value):
    """Waits until a model's response to 1 is a value."""
    wait_until(lambda: program.ask(model, [1]) == [value], 20, what=f"{value} from {model}")


def test_a_saved_function_is_served(program):
    running = program(app=SCALE)
    for factor in (3, 4, 5):  # in the same second, and of the same size
        save(running, "app", SCALE.replace("FACTOR = 2", f"FACTOR = {factor}"))
        wait_for_response(running, "Scale", factor)
    running.wait_for_log(r"Reloaded app.py in \d\.\d\d s: bound Scale v1\.")


def test_an_imported_module_is_reloaded_with_all_modules_that_use_it(program):
    running = program(
        app=WITH_HELPER, helper="from numbers_of_mine import BASE\nFACTOR = BASE * 10", numbers_of_mine="BASE = 1"
    )
    wait_for_response(running, "Scale", 10)
    save(running, "numbers_of_mine", "BASE = 2")
    wait_for_response(running, "Scale", 20)


def test_an_unchanged_module_is_not_imported_again(program):
    loaded = "print('loaded', flush=True)\nclass Weights:\n    factor = 1\nWEIGHTS = Weights()\n"
    running = program(
        app=SCALE.replace("FACTOR = 2", "import weights, helper\nFACTOR = weights.WEIGHTS.factor * helper.FACTOR"),
        weights=loaded,
        helper="FACTOR = 1",
    )
    save(running, "helper", "FACTOR = 6")
    wait_for_response(running, "Scale", 6)
    assert running.end() == 0
    assert running.process.stdout.read() == "loaded\n"


def test_models_are_added_and_removed(program):
    running = program(app=SCALE)
    save(running, "app", SCALE.replace('"Scale"', '"Other"'))
    wait_for_response(running, "Other", 2)
    wait_until(lambda: "unknown model" in str(running.ask("Scale", [1])))
    running.wait_for_log(r"bound Other v1; unbound Scale v1\.")


def test_a_model_may_change_its_tensors_and_settings(program):
    running = program(app=SCALE)
    assert running.ask("Scale", [1, 2, 3]) == [2, 4, 6]
    save(running, "app", SCALE.replace("shape=(-1,)", "shape=(2,)"))
    wait_until(lambda: "unexpected shape" in str(running.ask("Scale", [1, 2, 3])))
    assert running.ask("Scale", [1, 2]) == [2, 4]


def test_a_model_of_an_unchanged_module_is_not_rebound(program):
    stays = "import itertools\nfrom pytriton.decorators import batch\nnumbers = itertools.count(1)\n"
    stays += "@batch\ndef count(x):\n    return [x * 0 + next(numbers)]\n"
    running = program(app=SCALE + 'from stays import count\ntriton.bind("Count", count, **TENSORS)\n', stays=stays)
    assert running.ask("Count", [1]) == [1]
    save(running, "app", (running.folder / "app.py").read_text().replace("FACTOR = 2", "FACTOR = 8"))
    wait_for_response(running, "Scale", 8)
    assert running.ask("Count", [1]) == [2]
    running.wait_for_log(r"s: bound Scale v1\.")


@pytest.mark.parametrize("mistake", ["def", "1 / 0", "raise SystemError", "raise SystemExit", "import nothing_there"])
def test_after_a_mistake_the_old_code_is_served_until_it_is_corrected(program, mistake):
    running = program(app=WITH_HELPER, helper="FACTOR = 2")
    save(running, "helper", mistake)
    running.wait_for_log(r"app.py cannot be imported\.")
    assert running.ask("Scale", [1]) == [2]
    save(running, "helper", "FACTOR = 9")
    wait_for_response(running, "Scale", 9)


def test_a_program_without_models_after_an_edit_is_served_as_before(program):
    running = program(app=SCALE)
    save(running, "app", "")
    running.wait_for_log(r"app.py has no Triton at module level")
    assert running.ask("Scale", [1]) == [2]


def test_a_missing_module_may_be_added_later(program):
    running = program(app=SCALE)
    save(running, "app", SCALE.replace("FACTOR = 2", "from late import FACTOR"))
    running.wait_for_log(r"No module named 'late'")
    save(running, "late", "FACTOR = 4")
    wait_for_response(running, "Scale", 4)


def test_a_program_that_is_being_imported_at_the_end_is_not_served(program):
    running = program(app=SCALE)
    save(running, "app", WAITS_FOR_GATE + SCALE)
    wait_until((running.folder / "importing").exists)

    running.process.terminate()
    (running.folder / "gate").touch()
    assert running.end() == 0
    assert "Reloaded" not in running.log


def test_a_model_whose_change_the_server_refuses_is_served_as_before(program):
    running = program(app=SCALE)
    second = "triton.bind('Scale', scale, model_version=2, config=ModelConfig(max_batch_size=9), **TENSORS)"
    save(running, "app", SCALE.replace("FACTOR = 2", "FACTOR = 3") + second)
    running.wait_for_log(r"Versions 1 and 2 of model 'Scale' have different")
    assert running.ask("Scale", [1]) == [2]


def test_other_settings_of_the_server_need_a_restart(program):
    running = program(app=SCALE)
    save(
        running,
        "app",
        SCALE.replace("Triton()", "Triton(config=TritonConfig(log_verbose=1))").replace("R = 2", "R = 3"),
    )
    wait_for_response(running, "Scale", 3)
    running.wait_for_log(r"app.py has other settings of the server now; restart it to use them\.")


def test_functions_find_the_server_by_the_triton_of_the_new_program(program):
    calls = TENSORS + (
        "triton = Triton()\nFACTOR = 1\n"
        "triton.bind('Scale', batch(lambda x: [x * FACTOR]), **TENSORS)\n"
        "triton.bind('Names', batch(lambda x: [x * 0 + len(triton.models)]), **TENSORS)\n"
    )
    running = program(app=calls)
    assert running.ask("Names", [1]) == [2]
    for factor in (2, 3):
        save(running, "app", calls.replace("FACTOR = 1", f"FACTOR = {factor}"))
        wait_for_response(running, "Scale", factor)
        assert running.ask("Names", [1]) == [2]


def test_functions_in_processes_are_reloaded(program):
    running = program("--workers", "process", app=SCALE)
    assert running.ask("Scale", [1]) == [2]
    save(running, "app", SCALE.replace("FACTOR = 2", "FACTOR = 3"))
    wait_for_response(running, "Scale", 3)


def test_the_gateway_keeps_running(program):
    running = program("--gateway", 0, app=SCALE)
    save(running, "app", SCALE.replace("FACTOR = 2", "FACTOR = 3"))
    wait_for_response(running, "Scale", 3)


@pytest.mark.slow
def test_fifty_reloads_under_load_lose_no_request_and_are_fast(program):
    running = program(app=WITH_HELPER, helper="FACTOR = 1")
    load = [LoadOn(running, "Scale") for _ in range(CLIENTS)]
    took = []
    connection = running.connection()
    for version in range(2, RELOADS + 2):
        start = time.monotonic()
        save(running, "helper", f"FACTOR = {version}")
        wait_until(lambda version=version: running.ask("Scale", [1], connection) == [version], 30, what="a reload")
        took.append(time.monotonic() - start)
    connection.close()
    for each in load:
        each.finish()

    assert [each.errors for each in load] == [[]] * CLIENTS
    versions = {float(version) for version in range(1, RELOADS + 2)}
    for each in load:
        given = [answer[0] if isinstance(answer, list) else answer for answer in each.results]
        assert set(given) <= versions
        assert given == sorted(given), "an old version after a new one"
    assert statistics.median(took) < LIMIT_S * MARGIN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_a_signal_ends_an_import_that_hangs(program, number):
    running = program(app=SCALE)
    save(running, "app", SCALE + WAITS_FOR_GATE)
    wait_until((running.folder / "importing").exists)
    running.process.send_signal(number)
    assert running.process.wait(20) == 0, running.log
