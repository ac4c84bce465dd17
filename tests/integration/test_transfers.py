"""Tensors of all sizes over one HTTP connection, and the server's reads and writes for them."""

from __future__ import annotations

import concurrent.futures
import itertools
import json

import numpy as np
import pytest
from serving import FLOATS_IN, FLOATS_OUT, connection_to, needs_bundled_server, server_of

from pytriton.decorators import batch

IMAGE = 3 * 224 * 224
TRANSFER = 256 * 1024 // 4  # what the bundled server reads or writes at a time, in float32
REQUESTS = 10


@pytest.fixture(scope="module")
def model(triton):
    """A model that returns its input plus one."""
    triton.bind("Next", batch(lambda x: {"y": x + 1}), FLOATS_IN, FLOATS_OUT)
    return "Next"


def send_request(connection, model, values, pieces=1):
    """Sends one row of float32 in binary, its body in pieces; returns the row of the response."""
    tensor = {
        "name": "x",
        "shape": [1, len(values)],
        "datatype": "FP32",
        "parameters": {"binary_data_size": 4 * len(values)},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    body = head + values.tobytes()
    length = -(-len(body) // pieces)
    parts = (body[start : start + length] for start in range(0, len(body), length))
    headers = {"Inference-Header-Content-Length": str(len(head)), "Content-Length": str(len(body))}
    connection.request("POST", f"/v2/models/{model}/infer", parts, headers)
    response = connection.getresponse()
    content = response.read()
    assert response.status == 200, content
    return np.frombuffer(content[int(response.headers["Inference-Header-Content-Length"]) :], np.float32)


@needs_bundled_server
def test_an_image_takes_few_system_calls_each_way(triton, model):
    image = np.zeros(IMAGE, np.float32)
    with connection_to(triton) as connection:
        send_request(connection, model, image)
        before = server_of(triton).io_counters()
        for _ in range(REQUESTS):
            send_request(connection, model, image)
        after = server_of(triton).io_counters()
    # 3 of each; 148 and 37 with the sizes that libevent has by itself.
    assert after.read_count - before.read_count < 40 * REQUESTS
    assert after.write_count - before.write_count < 12 * REQUESTS


@pytest.mark.parametrize("pieces", [1, 7, 1000])
def test_tensors_about_as_large_as_a_transfer_are_returned_intact(triton, model, pieces):
    with connection_to(triton) as connection:
        for transfers, more in itertools.product((1, 2, 4), (-200, -50, -1, 0, 1, 50)):
            values = np.arange(transfers * TRANSFER + more, dtype=np.float32)
            np.testing.assert_array_equal(send_request(connection, model, values, pieces), values + 1)


def test_large_and_small_tensors_side_by_side_are_returned_intact(triton, model):
    def send_all(number):
        length = (1, 5 * TRANSFER)[number % 2]
        with connection_to(triton) as connection:
            for start in range(0, 10 * 1000, 1000):
                values = np.arange(start + number, start + number + length, dtype=np.float32)
                np.testing.assert_array_equal(send_request(connection, model, values), values + 1)

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        list(pool.map(send_all, range(12)))
