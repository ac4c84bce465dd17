"""The exit of a worker process, here of one without a model."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Exits a process after a test's code.
PROGRAM = """
import atexit, ctypes, gc, sys, threading, time
from pytriton.proxy.worker import process_exit
from pytriton.proxy.worker.threads import MainThread


class Cycle:
    def __init__(self):
        self.itself = self

    def __del__(self):
        print("collected")


def release():
    print("released")
    return is_deleted


process_exit.HANDLERS_TIMEOUT_S = process_exit._BUSY_TIMEOUT_S = process_exit._POOLS_TIMEOUT_S = 30
main_thread = MainThread()
is_deleted = True
gc.disable()  # nothing is collected by chance
exec(sys.argv[1])
threading.Thread(target=process_exit.exit_process, args=(main_thread, release)).start()
main_thread.run()
"""


def exit_after(code):
    """What the process prints, to both streams."""
    command = [sys.executable, "-c", PROGRAM, code]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return process.stdout, process.stderr


def test_the_model_is_released_after_the_exit_handlers():
    assert exit_after("atexit.register(print, 'handler')") == ("handler\nreleased\n", "")


def test_a_model_in_a_reference_cycle_is_collected():
    assert exit_after("Cycle(); is_deleted = False")[0] == "released\ncollected\n"


def test_objects_are_searched_only_if_necessary():
    assert exit_after("Cycle()")[0] == "released\n"


@pytest.mark.parametrize("mode", ["w", "wb", "r+b", "a"])
def test_open_files_are_flushed(tmp_path, mode):
    path = tmp_path / "file"
    path.touch()
    content = b"content" if "b" in mode else "content"
    exit_after(f"file = open({str(path)!r}, {mode!r}); file.write({content!r})")
    assert path.read_text() == "content"


def test_open_pipes_are_flushed():
    code = """
import subprocess
reader = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
reader.stdin.write(b"content")
"""
    assert "content" in exit_after(code)[0]


def test_a_handler_that_raises_is_printed_and_the_others_run():
    output, errors = exit_after("atexit.register(print, 'first')\natexit.register(lambda: 1 / 0)")
    assert output == "first\nreleased\n"
    assert "ZeroDivisionError" in errors


@pytest.mark.parametrize("code", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_other_handlers_run_after_one_that_exits(code):
    output, _ = exit_after(f"def end():\n    {code}\natexit.register(print, 'first')\natexit.register(end)")
    assert output == "first\nreleased\n"


def test_a_handler_that_hangs_is_abandoned():
    code = "print('before')\natexit.register(time.sleep, 1000)\nprocess_exit.HANDLERS_TIMEOUT_S = 0.3"
    output, errors = exit_after(code)
    assert output == "before\n"
    assert errors == (
        "Exit handlers of the model did not run to their end: the main thread has not finished after 0.3 s.\n"
    )


def test_files_are_flushed_even_if_a_handler_hangs(tmp_path):
    path = tmp_path / "file"
    code = f"file = open({str(path)!r}, 'w'); file.write('content')\natexit.register(time.sleep, 1000)"
    exit_after(f"{code}\nprocess_exit.HANDLERS_TIMEOUT_S = 0.3; process_exit._FILES_TIMEOUT_S = 30")
    assert path.read_text() == "content"


def test_a_busy_main_thread_is_not_waited_for():
    code = "main_thread.submit(lambda: time.sleep(1000))\natexit.register(print, 'handler')"
    output, errors = exit_after(f"{code}\nprocess_exit._BUSY_TIMEOUT_S = 0.3")
    assert output == ""
    assert errors == "Exit handlers of the model did not run to their end: the main thread is busy.\n"


def test_a_pool_that_does_not_finish_is_abandoned():
    code = """
from concurrent.futures import ThreadPoolExecutor
process_exit._POOLS_TIMEOUT_S = 0.3
pool = ThreadPoolExecutor(2)
pool.submit(print, "finished")
pool.submit(time.sleep, 1000)
atexit.register(print, "handler")
"""
    assert exit_after(code)[0] == "finished\nhandler\nreleased\n"


@pytest.mark.parametrize("code", ["sys.stdout = None", "sys.stdout.close()", "sys.stdout = 7"])
def test_a_closed_standard_stream_does_not_block_the_exit(code):
    code += "\nrelease = lambda: print('released', file=sys.stderr)"
    assert exit_after(code) == ("", "released\n")


def test_output_of_c_libraries_is_flushed():
    assert "in C\n" in exit_after("atexit.register(ctypes.CDLL(None).printf, b'in C\\n')")[0]


UNCAUGHT = """
import atexit, sys, threading, time
from pytriton.proxy.worker import process_exit

threading.Thread(target=time.sleep, args=[1000]).start()
atexit.register(print, "handler")
exec(sys.argv[1])
try:
    raise eval(sys.argv[2])
except BaseException as error:
    process_exit.exit_uncaught(error)
"""


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        ("SystemExit", 0, ""),
        ("SystemExit(3)", 3, ""),
        ("SystemExit('reason')", 1, "SystemExit: reason"),
        ("KeyboardInterrupt", 1, "KeyboardInterrupt"),
    ],
)
def test_an_uncaught_exception_ends_the_process_despite_busy_threads(error, status, message):
    command = [sys.executable, "-c", UNCAUGHT, "", error]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (process.returncode, process.stdout) == (status, "handler\n")
    assert message in process.stderr
    assert bool(process.stderr) == bool(message)


def test_a_hanging_handler_does_not_block_the_exit_after_an_exception():
    code = "process_exit.HANDLERS_TIMEOUT_S = 0.1; atexit.register(time.sleep, 1000)"
    process = subprocess.run([sys.executable, "-c", UNCAUGHT, code, "SystemExit(3)"], timeout=60, check=False)

    assert process.returncode == 3
