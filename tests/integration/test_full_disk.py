"""A full disk is reported, and overcome once there is space again."""

from __future__ import annotations

import re

import pytest
from full_disk import full_disk
from serving import Script, bind_floats, check_message, double, free_config, send_floats

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.triton import Triton, TritonLifecyclePolicy

LATER_WITH_MODELS = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
triple = batch(lambda x: [x * 3])


@pytest.mark.parametrize("is_bound", [False, True], ids=["a new model", "a model that is bound again"])
def test_a_full_disk_at_bind_is_reported_and_serving_continues(triton, name, is_bound):
    if is_bound:
        bind_floats(triton, name, double)
    bind_floats(triton, f"{name}_other", double)
    folder = triton._session.workspace.path / "models" / name

    with full_disk(), pytest.raises(PyTritonRuntimeError) as caught:
        bind_floats(triton, name, triple)

    remedy = "free some space, or name another folder by workspace="
    check_message(caught.value.message, [f"model '{name}'", f"'{folder}", "No space left on device", remedy])
    assert send_floats(triton, f"{name}_other", [1]) == [2]
    if is_bound:
        assert send_floats(triton, name, [1]) == [2]

    bind_floats(triton, name, triple)
    assert send_floats(triton, name, [1]) == [3]


def test_a_full_disk_at_the_start_is_reported_and_run_can_be_repeated():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER_WITH_MODELS)
    bind_floats(triton, "double", double)
    assert triton._session.workspace.is_empty()

    with (
        full_disk(),
        pytest.raises(PyTritonRuntimeError, match=r"model 'double'.*No space left on device.*free some space"),
    ):
        triton.run()
    assert not triton.is_alive()
    with triton:
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


FULL_DISK = """
import ctypes, json, os, pathlib, sys, urllib.request

folder = pathlib.Path("disk").absolute()
folder.mkdir()
user, group = os.getuid(), os.getgid()
libc = ctypes.CDLL(None)
CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS):
    sys.exit(print("no disk"))
for path, content in ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1"):
    pathlib.Path("/proc/self", path).write_text(content)
if libc.mount(b"none", str(folder).encode(), b"tmpfs", 0, b"size=256k"):
    sys.exit(print("no disk"))
print("a disk", flush=True)

import numpy as np  # its threads may not be there before
from pytriton.utils.workspace import Workspace

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config import Tensor
from pytriton.triton import Triton, TritonLifecyclePolicy

ballast = folder / "ballast"

def fill():
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            pass

def tell(function):
    try:
        function()
        print("nothing to tell", flush=True)
    except PyTritonRuntimeError as error:
        print(error, flush=True)

def ask(model):
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    url = f"http://127.0.0.1:{triton.config.http_port}/v2/models/{model}/infer"
    with urllib.request.urlopen(url, json.dumps(body).encode()) as response:
        return json.load(response)["outputs"][0]["data"][0]

def bind(model):
    tensors = [Tensor(name="x", shape=(-1,), dtype=np.float32)]
    triton.bind(model, batch(lambda x: [x * 2]), tensors, tensors)

fill()
tell(lambda: Triton(workspace=folder / "w").run())
ballast.unlink()
policy = TritonLifecyclePolicy(launch_triton_on_startup=False)
with Triton(workspace=Workspace(folder / "w"), triton_lifecycle_policy=policy) as triton:
    bind("before")
    fill()
    tell(triton.run)
    ballast.unlink()
    triton.run()
    fill()
    tell(lambda: bind("during"))
    print(ask("before"), flush=True)
    ballast.unlink()
    bind("after")
    print(ask("before"), ask("after"), flush=True)
"""


def test_a_full_disk_is_reported_and_survived(tmp_path):
    full = r"No space left on device\); free some space, or name another folder by workspace="
    with Script(tmp_path, FULL_DISK) as script:
        if script.line() == "no disk":
            pytest.skip("only root may mount a file system here")
        assert re.match(rf"The workspace '.*/disk/w' cannot be written \({full}", script.line())
        assert re.match(rf"The files of model 'before' cannot be written.*/disk/w.*\({full}", script.line())
        assert re.match(rf"The files of model 'during' cannot be written.*/disk/w.*\({full}", script.line())
        assert script.line() == "2.0"
        assert script.line() == "2.0 2.0"
        assert script.wait() == 0
