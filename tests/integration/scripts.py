"""Scripts of users, and what they must not leave behind."""

from __future__ import annotations

from serving import is_running, shared_memory

GONE_S = 1.0

SERVE = '''
import os, signal, sys, threading, time
import numpy as np
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

@batch
def double(x):
    return [x * 2]

def serve_and_say(triton, text):
    """Serves, and says something once it listens to signals."""
    def say():
        while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            time.sleep(0.002)
        print(text, flush=True)
    threading.Thread(target=say, daemon=True).start()
    triton.serve()

def sleep_for_a_minute():
    """Sleeps, but handles a signal that comes just before: Python does so only when it wakes up."""
    for _ in range(600):
        time.sleep(0.1)

def bind(triton):
    triton.bind(
        model_name="Double",
        infer_func=double,
        inputs=[Tensor(name="x", shape=(-1,), dtype=np.float32)],
        outputs=[Tensor(name="y", shape=(-1,), dtype=np.float32)],
        config=ModelConfig(max_batch_size=8),
    )
'''

BLOCKING = (
    SERVE
    + """
with Triton() as triton:
    bind(triton)
    serve_and_say(triton, "ready")
print("after", flush=True)
"""
)

WAITING = (
    SERVE
    + """
with Triton() as triton:
    bind(triton)
    triton.run()
    print("ready", flush=True)
    sleep_for_a_minute()
"""
)

NOTEBOOK = (
    SERVE
    + """
triton = Triton()
bind(triton)
triton.run()
print("ready", flush=True)
sys.stdin.readline()  # until the test lets it continue
"""
)


def assert_clean(script, shared_before):
    assert not is_running(script.server)
    assert script.workspaces() == []
    assert shared_memory() <= shared_before
