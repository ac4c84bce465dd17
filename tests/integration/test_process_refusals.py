"""Invalid factories of process instances."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading

import cloudpickle
import pytest
from processes import Multiply, bind_pid, double, function, generator, is_ready, process_of, processes_of
from serving import LATER, Background, bind_floats, free_config, send_floats, wait_until

from pytriton.decorators import group_by_values
from pytriton.exceptions import PyTritonBadParameterError, PyTritonInvalidOperationError
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

cloudpickle.register_pickle_by_value(sys.modules[__name__])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"factory": 3}, "factory is 3, which is not callable; pass a function or a class"),
        ({"factory": double}, "an inference callable itself; pass a function that creates one"),
        ({"factory": print, "args": "cuda:0"}, "args is 'cuda:0'; use a tuple or a list"),
        ({"factory": print, "kwargs": [1]}, r"kwargs is \[1\]; use a dictionary"),
        ({"factory": print, "env": "A=1"}, "env is 'A=1'; use a dictionary of strings"),
        ({"factory": print, "env": {"A": 1}}, "env has 'A': 1, which is not a valid environment variable"),
        ({"factory": print, "env": {"A=": "1"}}, "env has 'A=': '1', which is not a valid environment variable"),
    ],
)
def test_invalid_arguments_are_refused_at_once(arguments, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        ProcessInstance(**arguments)


def test_bind_refuses_unpicklable_factories_with_the_reason(triton, name):
    lock = threading.Lock()

    with pytest.raises(
        PyTritonBadParameterError,
        match=f"Model '{name}': instance 1 cannot be sent to its process: TypeError: cannot pickle "
        r"'_thread.lock' object; .*create it in the factory",
    ):
        bind_floats(triton, name, [ProcessInstance(lambda: double), ProcessInstance(lambda: lock)])
    assert not processes_of(name)


def fails():
    raise ValueError("there is no such device")


def leaves():
    sys.exit("enough")


def ends():
    os._exit(3)


def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)


class LooksUpError(Exception):
    """Looks all its attributes up in a dictionary; Python looks for some when it prints an exception."""

    def __getattr__(self, name):
        return {"code": 404}[name]


def cannot_be_shown():
    raise LooksUpError("gone")


def fails_at_length():
    raise ValueError("no device" * 1_000_000)


def limits_its_address_space():
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    return double


def wrong_order():
    return group_by_values("x")(lambda x: [x])


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (fails, "cannot create its inference callable: ValueError: there is no such device"),
        (leaves, "cannot create its inference callable: SystemExit: enough"),
        (cannot_be_shown, "cannot create its inference callable: LooksUpError: gone"),
        (fails_at_length, r"cannot create its inference callable: ValueError: no device.{1,5000}$"),
        (limits_its_address_space, "cannot create its inference callable: .*limited to 8192 MiB .*RLIMIT_AS"),
        (ends, "exited with status 3 while it created its inference callable"),
        (is_killed, "was killed by SIGKILL while it created its inference callable"),
        (lambda: 3, "cannot create its inference callable: .*infer_func is 3, which is not callable"),
        (wrong_order, "cannot create its inference callable: .*put @batch above it"),
        (generator, r"cannot create its inference callable: .*set ModelConfig\(decoupled=True\)"),
    ],
)
def test_a_factory_that_fails_fails_the_binding(triton, name, make, reason):
    with pytest.raises(PyTritonInvalidOperationError, match=rf"process of model '{name}' \(instance 1\) {reason}"):
        bind_floats(triton, name, [ProcessInstance(function), ProcessInstance(make)])

    assert not processes_of(name)
    assert not is_ready(triton, name)


def test_a_process_that_cannot_be_started_fails_the_binding(triton, name, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(PyTritonInvalidOperationError, match=r"exited with status 127 while it created its inference"):
        bind_floats(triton, name, ProcessInstance(function))

    monkeypatch.setattr(sys, "path", ["a\0b"])
    with pytest.raises(PyTritonInvalidOperationError, match=r"cannot be started: ValueError: embedded null byte"):
        bind_floats(triton, name, ProcessInstance(function))


def test_the_traceback_of_a_factory_is_in_the_log(triton, name, caplog):
    with pytest.raises(PyTritonInvalidOperationError):
        bind_floats(triton, name, ProcessInstance(fails))

    line = fails.__code__.co_firstlineno + 1
    assert f'test_process_refusals.py", line {line}, in fails' in caplog.text


def test_the_earlier_model_stays_if_the_factory_of_its_replacement_fails(triton, name):
    bind_pid(triton, name, ProcessInstance(Multiply))
    process = process_of(name)

    with pytest.raises(PyTritonInvalidOperationError, match="no such device"):
        bind_pid(triton, name, ProcessInstance(fails))

    assert send_floats(triton, name, [1]) == [2]
    assert processes_of(name) == {0: process}


def test_a_model_that_was_bound_before_fails_the_start():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    bind_floats(triton, "good", ProcessInstance(function))
    bind_floats(triton, "bad", ProcessInstance(fails))

    with pytest.raises(PyTritonInvalidOperationError, match=r"model 'bad' .*no such device"):
        triton.run()
    assert not triton.is_alive()
    assert not processes_of("good")


def test_an_interrupted_binding_leaves_nothing_behind(triton, name, tmp_path):
    def make():
        (tmp_path / "entered").touch()
        signal.pause()

    def interrupt():
        wait_until((tmp_path / "entered").exists)
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = Background(interrupt)
    with pytest.raises(KeyboardInterrupt):
        bind_floats(triton, name, ProcessInstance(make))

    interrupting.finish()
    assert not processes_of(name)
    bind_floats(triton, name, double)
    assert send_floats(triton, name, [1]) == [2]
