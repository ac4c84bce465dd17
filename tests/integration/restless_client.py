"""A client that streams at random and leaves at random, until it is killed; a script.

Its arguments are the HTTP port, the gRPC port and a seed. The models are those of `test_streams_load.Restless`.
"""

from __future__ import annotations

import random
import sys
import threading
from types import SimpleNamespace

import numpy as np
import tritonclient.grpc
from serving import HOST
from streaming import events_of, stream_to

THREADS = 4
MODELS = ("waits", "yields", "generator", "together")


def x(rng):
    """How many steps are wanted, and floats in each of them."""
    return [rng.randint(0, 30), int(2 ** rng.uniform(0, 14))]


def over_grpc(triton, rng):
    with stream_to(triton) as stream:
        sent = rng.randint(1, 6)
        for _ in range(sent):
            timeout = rng.choice([None, None, rng.randint(10_000, 300_000)])
            stream.send(rng.choice(MODELS), *x(rng), timeout=timeout)
        for _ in range(rng.randint(0, 30)):
            sent -= stream.reply().final
            if sent == 0:
                break


def over_http(triton, rng):
    model = rng.choice(MODELS)
    with events_of(triton, model, {"x": x(rng)}) as events:
        for _ in range(rng.randint(0, 30)):
            if events.event() is None:
                break


def one_request(triton, rng):
    client = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
    tensor = tritonclient.grpc.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([x(rng)], np.float32))
    responded = threading.Event()
    request = client.async_infer("coroutine", [tensor], lambda result, error: responded.set())
    responded.wait(rng.uniform(0, 0.3))
    request.cancel()
    responded.wait()
    client.close()


def run(triton, seed):
    rng = random.Random(seed)
    while True:
        rng.choice([over_grpc, over_http, one_request])(triton, rng)
        print(flush=True)


if __name__ == "__main__":
    http_port, grpc_port, seed = map(int, sys.argv[1:])
    ports = SimpleNamespace(config=SimpleNamespace(http_port=http_port, grpc_port=grpc_port))
    for thread in range(THREADS):
        threading.Thread(target=run, args=(ports, seed * THREADS + thread), daemon=True).start()
    sys.stdin.read()
