"""``model.py`` is found, imported, completed, initialized and finalized."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import pathlib
import sys
import textwrap
import threading
import traceback
import types

import numpy as np
import pytest
from declared import config_of, tensor

from pytriton.proxy.wire.registration import ExecutionMode
from pytriton.proxy.worker.execution_mode import MAX_DEFERRED, MAX_IN_FLIGHT
from pytriton.proxy.worker.worker import Worker
from pytriton.python_backend import loader
from pytriton.python_backend import triton_python_backend_utils as ours
from pytriton.python_backend.errors import TritonModelException

BARE = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


def seen(name="seen"):
    """What a model has kept in its module."""
    return getattr(sys.modules["1.model"], name)


def test_initialize_is_given_strings(repository):
    command = repository(
        """
        seen = {}

        class TritonPythonModel:
            def initialize(self, args):
                seen.update(args)

            def execute(self, requests):
                return []
        """,
        version=3,
        kind="GPU",
        device="1",
    )
    loader.load(command)
    assert sys.modules["3.model"].seen == {
        "model_config": command.config,
        "model_instance_kind": "GPU",
        "model_instance_device_id": "1",
        "model_repository": command.repository,
        "model_version": "3",
        "model_name": "m",
        "model_instance_name": "m_0_0",
    }


def test_a_model_needs_only_execute(repository):
    loaded = loader.load(repository(BARE))
    loaded.finalize()
    assert loaded.is_ready is None
    assert loaded.signature.inputs == ["x"]


FINALIZED = (
    BARE
    + """
    def finalize(self):
        global seen
        seen = 1
"""
)


def test_finalize_is_called(repository):
    loaded = loader.load(repository(FINALIZED))
    loaded.finalize()
    assert seen() == 1


IS_READY = """
    def is_ready(self):
        return READY

READY = False
"""


@pytest.mark.parametrize("method", ["def", "async def"])
def test_a_model_tells_whether_it_is_ready(repository, method):
    loaded = loader.load(repository(BARE + IS_READY.replace("def", method)))
    assert not loaded.is_ready()
    sys.modules["1.model"].READY = True
    assert loaded.is_ready()


def test_a_property_of_the_same_name_that_fails_is_not_called_again(repository):
    body = "\n    @property\n    def is_ready(self):\n        raise RuntimeError('not yet')\n"
    assert loader.load(repository(BARE + body)).is_ready is None


def test_our_utilities_take_precedence_over_a_copy_beside_the_model(repository):
    command = repository(
        "import triton_python_backend_utils as pb_utils" + BARE,
        triton_python_backend_utils="raise ImportError('an old copy')",
    )
    loader.load(command)
    assert seen("pb_utils") is ours


def test_modules_beside_the_model_are_found(repository):
    loader.load(repository("import helper\nseen = helper.VALUE\n" + BARE, helper="VALUE = 7"))
    assert seen() == 7


def test_relative_imports_find_modules_beside_the_model(repository):
    command = repository(
        """
        from . import helper
        from .sub.deep import VALUE

        seen = (__name__, __package__, helper.VALUE, VALUE)
        """
        + textwrap.dedent(BARE).replace("\n", "\n        "),
        helper="from .sub import deep\nVALUE = deep.VALUE + 1",
    )
    sub = pathlib.Path(command.repository) / "1" / "sub"
    sub.mkdir()
    (sub / "deep.py").write_text("VALUE = 7")
    loader.load(command)
    assert seen() == ("1.model", "1", 8, 7)


def test_a_versions_folder_may_be_a_package(repository):
    loader.load(repository("from . import VALUE as seen\n" + BARE, __init__="VALUE = 7"))
    assert seen() == 7


WANDERING = """
import os
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        os.chdir("/")
        return config

    def initialize(self, args):
        import later
        for folder in (args["model_repository"] + "/1", pb_utils.get_model_dir(), os.path.dirname(__file__)):
            assert os.path.isfile(f"{folder}/later.py")

    def execute(self, requests):
        pass
"""


def test_paths_are_absolute_so_that_the_model_may_change_the_folder(repository, monkeypatch):
    command = repository(WANDERING, later="")
    folder = pathlib.Path(command.repository)
    monkeypatch.chdir(folder.parent)
    command = dataclasses.replace(command, repository=folder.name)
    assert loader.complete(command) == command.config
    loader.load(command)


def test_the_folder_of_the_version_precedes_installed_packages_and_follows_the_standard_library(repository):
    command = repository(
        "import sys\nimport triton_python_backend_utils as pb_utils\nseen = list(sys.path), pb_utils.get_model_dir()\n"
        + BARE
    )
    loader.load(command)
    path, folder = seen()
    assert folder == f"{command.repository}/1"
    standard_library = path.index(f"{pathlib.Path(json.__file__).parent.parent}/lib-dynload")
    installed = path.index(str(pathlib.Path(np.__file__).parent.parent))
    assert standard_library < path.index(folder) < installed


def test_a_helper_may_have_the_name_of_a_module_of_the_standard_library(repository):
    code = "import colorsys\nfrom .colorsys import VALUE\nseen = colorsys.rgb_to_hls, VALUE\n"
    loader.load(repository(code + BARE, colorsys="VALUE = 7"))
    assert seen()[1] == 7


def test_no_bytecode_is_left_in_the_repository(repository, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    command = repository("import helper\n" + BARE, helper="")
    loader.load(command)
    assert list(pathlib.Path(command.repository).rglob("*.pyc")) == []
    assert not sys.dont_write_bytecode


def test_the_file_may_have_another_name(repository):
    command = repository(BARE, {**config_of(), "default_model_filename": "other.py"}, filename="other.py")
    assert loader.load(command).signature.model == "m"


def test_a_class_of_the_model_can_be_pickled(repository):
    import pickle

    loader.load(repository("class Value:\n    pass\n" + BARE))
    assert type(pickle.loads(pickle.dumps(seen("Value")()))) is seen("Value")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1", "has no class 'TritonPythonModel'"),
        ("class TritonPythonModel:\n    pass", "has no method 'execute'"),
    ],
)
def test_a_file_without_a_model_is_refused(repository, source, message):
    with pytest.raises(TritonModelException, match=message):
        loader.load(repository(source))


def test_a_model_without_a_file_is_refused(repository):
    command = repository(BARE)
    (pathlib.Path(command.repository) / "1" / "model.py").unlink()
    with pytest.raises(TritonModelException, match=r"model 'm' has no file .*/1/model\.py"):
        loader.load(command)


def test_errors_show_the_models_own_lines(repository):
    command = repository("""
        import nothing_of_that_name
    """)
    with pytest.raises(ModuleNotFoundError) as raised:
        loader.load(command)
    assert traceback.extract_tb(raised.value.__traceback__)[-1].lineno == 2
    command = repository(BARE + "\n    def initialize(self, args):\n        args['nothing']\n")
    with pytest.raises(KeyError) as raised:
        loader.load(command)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename.endswith("/1/model.py"), last.lineno, last.name) == (True, 7, "initialize")


def test_a_failed_import_is_retried(repository):
    command = repository("raise RuntimeError('not now')")
    with pytest.raises(RuntimeError):
        loader.load(command)
    (pathlib.Path(command.repository) / "1" / "model.py").write_text(BARE)
    loader.load(command)


COMPLETING = """
    imports = 0

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(auto_complete_model_config):
            auto_complete_model_config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [-1]})
            auto_complete_model_config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [-1]})
            auto_complete_model_config.set_max_batch_size(4)
            return auto_complete_model_config

        def execute(self, requests):
            return []
"""


def test_a_configuration_is_completed(repository):
    command = repository(COMPLETING, config_of([], [], max_batch_size=0))
    completed = json.loads(loader.complete(command))
    assert (completed["max_batch_size"], completed["input"], completed["output"]) == (4, [tensor("x")], [tensor("y")])
    first = sys.modules["1.model"]
    command.config = json.dumps(completed)
    assert loader.load(command).signature.spec.max_batch_size == 4
    assert sys.modules["1.model"] is first, "model.py is imported once"


def test_a_model_that_completes_nothing_keeps_its_configuration(repository):
    command = repository(BARE)
    assert loader.complete(command) == command.config


def test_completing_returns_a_configuration(repository):
    with pytest.raises(TritonModelException, match="returned NoneType"):
        loader.complete(
            repository(COMPLETING.replace("return auto_complete_model_config", ""), config_of([], [], max_batch_size=0))
        )


def test_a_model_has_inputs_or_outputs(repository):
    assert loader.load(repository(BARE, config_of(outputs=[]))).signature.outputs == []
    assert len(loader.load(repository(BARE, config_of(inputs=[]))).signature.outputs) == 1
    with pytest.raises(Exception, match=r"has neither inputs nor outputs in its config\.pbtxt"):
        loader.load(repository(BARE, config_of(inputs=[], outputs=[])))


def test_the_signature_is_that_of_the_configuration(repository):
    inputs = [
        tensor("a", "TYPE_STRING", [1], reshape={"shape": []}),
        tensor("b", "TYPE_BF16", [2, -1], optional=True),
        tensor("c", "TYPE_BOOL", ["3"]),
    ]
    sequence = {"control_input": [{"name": "START"}], "state": [{"input_name": "S", "output_name": "T", "dims": [1]}]}
    config = config_of(inputs, [tensor("y", "TYPE_FP16")], max_batch_size=0, sequence_batching=sequence)
    signature = loader.load(repository(BARE, config)).signature
    assert signature.inputs == ["a", "b", "c", "START", "S"]
    assert not signature.batching
    assert signature.scalar_inputs == {0}
    assert [each.shape for each in signature.spec.inputs[:3]] == [(), (2, -1), (3,)]
    assert signature.outputs[0].dtype == np.float16


@pytest.mark.parametrize(
    ("execute", "decoupled", "mode", "max_in_flight"),
    [
        ("def", False, ExecutionMode.SEQUENTIAL, 1),
        ("def", True, ExecutionMode.DEFERRED, MAX_DEFERRED),
        ("async def", False, ExecutionMode.CONCURRENT, MAX_IN_FLIGHT),
        ("async def", True, ExecutionMode.CONCURRENT, MAX_DEFERRED),
    ],
)
def test_the_execution_mode_depends_on_execute(repository, execute, decoupled, mode, max_in_flight):
    loaded = loader.load(repository(BARE.replace("def", execute), config_of(decoupled=decoupled)))
    worker = Worker(loaded.infer_func, loaded.signature)
    assert (worker.mode, worker.max_in_flight) == (mode, max_in_flight)


ON_A_DEVICE = """
import torch

class TritonPythonModel:
    def __init__(self):
        assert torch.cuda.device == {made}

    def execute(self, requests):
        assert torch.cuda.device == {made}
        return requests
"""


@pytest.mark.parametrize(("kind", "device"), [("GPU", 3), ("CPU", None)])
def test_a_model_uses_the_device_of_its_instance(repository, monkeypatch, kind, device):
    """In the thread that loads it, and in the one that calls it. There is no GPU here: PyTorch is made up."""
    devices = threading.local()

    class Cuda:
        device = property(lambda _: getattr(devices, "number", None))

        def is_available(self):
            return True

        def set_device(self, number):
            devices.number = number

    torch = types.ModuleType("torch")
    torch.cuda = Cuda()
    monkeypatch.setitem(sys.modules, "torch", torch)

    loaded = loader.load(repository(ON_A_DEVICE.format(made=device), kind=kind, device="3"))
    model = loaded.infer_func._model
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        batch = types.SimpleNamespace(_batch=None)
        requests = pool.submit(model.requests, [batch]).result()
        assert pool.submit(model.execute, requests).result() == requests


@pytest.mark.parametrize(
    "code",
    [
        "class TritonPythonModel:\n    def initialize(self, args):\n        self.execute = lambda requests: []\n",
        "class Model:\n    def __init__(self, k):\n        self.execute = lambda requests: []\n"
        "import functools\nTritonPythonModel = functools.partial(Model, k=3)\n",
        "class Model:\n    def __getattr__(self, name):\n        if name != 'execute': raise AttributeError(name)\n"
        "        return lambda requests: []\ndef TritonPythonModel():\n    return Model()\n",
    ],
    ids=["initialize", "partial", "getattr"],
)
def test_an_instance_may_have_its_own_execute(repository, code):
    assert loader.load(repository(code)).infer_func is not None


def test_the_instances_own_execute_may_be_a_coroutine_function(repository):
    code = "class TritonPythonModel:\n    def initialize(self, args):\n        self.execute = seen\n"
    loaded = loader.load(repository("async def seen(requests):\n    return []\n" + code))
    assert loaded.loop is not None
    loaded.loop.close()


USES_SENDERS = """
def respond(request):
    return request.get_response_sender()
"""


def test_a_model_whose_helpers_use_senders_may_respond_at_any_time(repository):
    source = BARE.replace("class TritonPythonModel", "import helpers\n\nclass TritonPythonModel")
    assert source != BARE
    loaded = loader.load(repository(source, helpers=USES_SENDERS))
    assert Worker(loaded.infer_func, loaded.signature).mode is ExecutionMode.DEFERRED
