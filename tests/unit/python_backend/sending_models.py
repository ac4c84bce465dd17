"""Models that send responses, for tests without a server."""

from __future__ import annotations

import numpy as np
from declared import config_of

DECOUPLED = config_of(decoupled=True)
DROPPED = "the model dropped the request's response sender before it had sent the final flag"
HEAD = """
import asyncio
import pathlib
import threading
import time
import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

def y(*values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([values], np.float32))])

class TritonPythonModel:
"""


def model(body, head="def execute(self, requests):"):
    """The source of a model whose ``execute`` has this body."""
    lines = "\n".join("        " + line for line in body.strip("\n").splitlines())
    return f"{HEAD}    {head}\n{lines}\n"


def asynchronous(body):
    """The source of a model whose ``execute`` is a coroutine function with this body."""
    return model(body, "async def execute(self, requests):")


def x(*values):
    """A request with one row."""
    return {"x": np.array([values], np.float32)}


def failure(item):
    """The code and the message of a response that is an error."""
    return item.code, item.message


def unrecognized(source):
    """The source of a model, without the word by which a loader recognizes that responses may be sent at any time.

    Its ``execute`` is then called as one that returns its responses.
    """
    return source.replace(".get_response_sender()", ".__getattribute__('get_response' + '_sender')()")
