"""Sends requests to both models at the same time: ``python examples/python_backend/decoupled/client.py``."""

from __future__ import annotations

import argparse
import queue
from typing import Any

import numpy as np
import tritonclient.grpc

QUESTIONS = {"repeat": [1, 2, 3], "countdown": [3]}


def main() -> None:
    parser = argparse.ArgumentParser(description="Send requests to two decoupled models at the same time.")
    parser.add_argument("--url", default="127.0.0.1:8001", help="host and port of the server's gRPC endpoint")
    arguments = parser.parse_args()
    replies: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(arguments.url) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        for model, numbers in QUESTIONS.items():
            tensor = tritonclient.grpc.InferInput("IN", [1, len(numbers)], "FP32")
            tensor.set_data_from_numpy(np.array([numbers], np.float32))
            client.async_stream_infer(model, [tensor], request_id=model, enable_empty_final_response=True)
        open_ = set(QUESTIONS)
        while open_:
            result, error = replies.get(timeout=30)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                print(f"{response.id}: {result.as_numpy('OUT').item()}")
            if response.parameters["triton_final_response"].bool_param:
                print(f"{response.id} has ended")
                open_.discard(response.id)


if __name__ == "__main__":
    main()
