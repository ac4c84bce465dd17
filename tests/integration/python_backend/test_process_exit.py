"""A worker process exits as Python programs do: with exit handlers, finalizers and written files."""

from __future__ import annotations

import logging
import time

import numpy as np
import psutil
import pytest
from serving import bind_floats, is_running, running_triton, wait_until
from worker_models import MODEL, command, pid_of, send_request, write_model

from pytriton.process import ProcessInstance

HEAD = """
import atexit
import logging
import logging.handlers
import tempfile
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor


def tell(name):
    with (HERE / "recorded").open("a") as file:
        file.write(name + "\\n")


class TritonPythonModel"""


@pytest.fixture
def load(triton, repository, name):
    """Loads a model that does this in the end of its initialization; returns a function that unloads it."""

    def load(start, more=""):
        lines = "".join(f"        {line}\n" for line in start.strip().splitlines())
        code = MODEL.replace("class TritonPythonModel", HEAD).replace("    def execute", f"{lines}\n    def execute")
        folder = write_model(repository, name, code=f"{code}\n{more}")
        assert command(triton, name, "load") == (200, None)
        process = psutil.Process(pid_of(triton, name))

        def unload(timeout_s=20):
            start = time.monotonic()
            assert command(triton, name, "unload")[0] == 200
            wait_until(lambda: not is_running(process), timeout_s=30)
            assert time.monotonic() - start < timeout_s
            return folder

        return unload

    return load


def recorded(folder):
    return (folder / "recorded").read_text().split()


def test_exit_handlers_run_after_finalize_in_reverse_order(load):
    more = "    def finalize(self):\n        tell('finalize')\n"
    folder = load("atexit.register(tell, 'first')\natexit.register(tell, 'second')", more)()
    assert recorded(folder) == ["finalize", "second", "first"]


def test_files_that_a_failing_finalize_has_open_are_written(load):
    more = """
    def finalize(self):
        file = (HERE / "recorded").open("w")
        file.write("begun")
        raise RuntimeError("on purpose")
"""
    assert recorded(load("", more)()) == ["begun"]


def test_exit_handlers_run_in_the_main_thread(load):
    folder = load("atexit.register(lambda: tell(threading.current_thread().name))")()
    assert recorded(folder) == ["MainThread"]


def test_other_exit_handlers_run_after_one_that_raises(load):
    folder = load("atexit.register(tell, 'first')\natexit.register(lambda: 1 / 0)")()
    assert recorded(folder) == ["first"]


def test_the_model_is_deleted_after_the_exit_handlers(load):
    folder = load("atexit.register(tell, 'handler')", "    def __del__(self):\n        tell('deleted')\n")()
    assert recorded(folder) == ["handler", "deleted"]


def test_files_are_written(load):
    start = """
self.file = (HERE / "own").open("w")
self.file.write("of the model")
global FILE
FILE = (HERE / "global").open("wb")
FILE.write(b"of the module")
"""
    folder = load(start)()
    assert (folder / "own").read_text() == "of the model"
    assert (folder / "global").read_text() == "of the module"


def test_temporary_folders_are_removed(load):
    start = """
self.folder = tempfile.TemporaryDirectory(dir=HERE)
global FOLDER
FOLDER = tempfile.TemporaryDirectory(dir=HERE)
tell(self.folder.name + "\\n" + FOLDER.name)
"""
    folder = load(start)()
    assert len(recorded(folder)) == 2
    assert [path for path in folder.iterdir() if path.is_dir()] == []


def test_log_handlers_flush_their_buffers(load):
    start = """
file = logging.FileHandler(HERE / "log")
logger = logging.getLogger("model")
logger.addHandler(logging.handlers.MemoryHandler(1000, target=file))
logger.warning("loaded")
"""
    folder = load(start)()
    assert (folder / "log").read_text() == "loaded\n"


def test_pools_finish_their_work(load):
    start = """
self.pool = ThreadPoolExecutor(1)
self.pool.submit(time.sleep, 0.3)
"""
    more = "    def finalize(self):\n        self.pool.submit(tell, 'done')\n"
    assert recorded(load(start, more)()) == ["done"]


def test_background_tasks_of_an_awaited_call_clean_up_before_finalize(load):
    start = """
import asyncio
self.asyncio = asyncio
self.tasks = []
"""
    more = """
    def execute(self, requests):
        return self.respond([pb_utils.get_input_tensor_by_name(request, "x").as_numpy() for request in requests])

    async def respond(self, arrays):
        begun = self.asyncio.Event()
        self.tasks.append(self.asyncio.create_task(self.wait(begun)))
        await begun.wait()
        return [self.answer(array) for array in arrays]

    async def wait(self, begun):
        try:
            begun.set()
            await self.asyncio.Event().wait()
        finally:
            await self.asyncio.sleep(0.2)
            tell("cleaned")

    def finalize(self):
        tell("finalize")
"""
    assert recorded(load(start, more)()) == ["cleaned", "finalize"]


@pytest.mark.parametrize("is_daemon", [True, False])
def test_threads_of_the_model_do_not_keep_the_process_alive(load, is_daemon):
    load(f"threading.Thread(target=time.sleep, args=[1000], daemon={is_daemon}).start()")()


def test_pools_of_processes_do_not_keep_the_process_alive(load):
    start = """
from concurrent.futures import ProcessPoolExecutor
self.pool = ProcessPoolExecutor(2)
self.pool.submit(os.getpid).result()
"""
    load(start)()


def test_a_model_that_does_not_load_runs_its_exit_handlers(triton, repository, name):
    start = """
    import atexit, pathlib
    atexit.register((pathlib.Path(args["model_repository"]) / "ended").touch)
    raise ValueError("no weights")
    """
    folder = write_model(repository, name, start=start)
    assert command(triton, name, "load")[0] == 400
    wait_until((folder.parent / "ended").exists)


def test_the_server_waits_for_exit_handlers(tmp_path):
    start = f"""
    import atexit, pathlib, time
    atexit.register(pathlib.Path("{tmp_path}/ended").touch)
    atexit.register(time.sleep, 1)
    """
    write_model(tmp_path / "models", "model", start=start)
    with running_triton(model_repository=tmp_path / "models") as triton:
        triton.run()
        assert send_request(triton, "model", 1)[0] == 2
    assert (tmp_path / "ended").exists()


@pytest.mark.slow
def test_an_exit_handler_that_hangs_is_abandoned_and_logged(load, caplog):
    with caplog.at_level(logging.INFO):
        load("atexit.register(time.sleep, 1000)")(timeout_s=10)
        text = "Exit handlers of the model did not run to their end: the main thread has not finished after 5 s."
        wait_until(lambda: text in caplog.text)


def test_the_process_of_a_bound_model_exits_in_the_same_way(tmp_path):
    def make(path):
        import atexit

        class Doubling:
            def __init__(self):
                self.file = path.open("w")
                self.file.write("doubling")
                atexit.register(path.with_name("handler").touch)

            def __call__(self, requests):
                return [{"y": np.float32(2) * request["x"]} for request in requests]

            def __del__(self):
                path.with_name("deleted").touch()

        return Doubling()

    with running_triton() as triton:
        bind_floats(triton, "bound", ProcessInstance(make, args=[tmp_path / "file"]))
        triton.run()
    assert (tmp_path / "file").read_text() == "doubling"
    assert (tmp_path / "handler").exists()
    assert (tmp_path / "deleted").exists()
