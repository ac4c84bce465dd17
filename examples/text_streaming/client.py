"""Streams text from the model of ``server.py`` over gRPC: ``python examples/text_streaming/client.py "The class"``."""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tritonclient.grpc
from numpy.typing import NDArray

MODEL_NAME = "Writer"


def stream(url: str, prompts: Sequence[str], **options: float) -> Iterator[tuple[int, str]]:
    """Has texts written, all at the same time over one connection; to close it cancels what is not written yet.

    Args:
        url: Host and port of the server's gRPC endpoint, without a scheme.
        prompts: What the texts go on from.
        **options: ``max_tokens`` and ``temperature``, where the model's own defaults will not do.

    Yields:
        The position of a prompt and the next piece of its text, as the pieces come.

    Raises:
        InferenceServerException: The server cannot be reached, or the model refused a request.
    """
    replies: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    with tritonclient.grpc.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: replies.put((result, error)))
        try:
            for position, prompt in enumerate(prompts):
                client.async_stream_infer(
                    MODEL_NAME,
                    inputs_of(prompt, **options),
                    request_id=str(position),
                    enable_empty_final_response=True,
                )
            unfinished = len(prompts)
            while unfinished:
                result, error = replies.get()
                if error is not None:
                    raise error
                response = result.get_response()
                if response.outputs:
                    yield int(response.id), result.as_numpy("text").item().decode()
                unfinished -= response.parameters["triton_final_response"].bool_param
        finally:
            client.stop_stream(cancel_requests=True)


def inputs_of(prompt: str, **options: float) -> list[Any]:
    """A request's tensors."""
    values: dict[str, tuple[str, NDArray[Any]]] = {"prompt": ("BYTES", np.array([prompt.encode()], object))}
    if "max_tokens" in options:
        values["max_tokens"] = ("INT32", np.array([options["max_tokens"]], np.int32))
    if "temperature" in options:
        values["temperature"] = ("FP32", np.array([options["temperature"]], np.float32))
    tensors = []
    for name, (datatype, array) in values.items():
        tensor = tritonclient.grpc.InferInput(name, [1], datatype)
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors


def show(url: str, prompts: Sequence[str], **options: float) -> None:
    """Prints texts as they come: one character by character, several line by line."""
    lines = list(prompts)
    if len(prompts) == 1:
        print(prompts[0], end="", flush=True)
    with closing(stream(url, prompts, **options)) as pieces:
        for position, text in pieces:
            if len(prompts) == 1:
                print(text, end="", flush=True)
                continue
            *whole, lines[position] = (lines[position] + text).split("\n")
            for line in whole:
                print(f"{position + 1} | {line}", flush=True)
    ...


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream text from the model of server.py, over gRPC.")
    parser.add_argument("prompts", nargs="*", default=["The "])
    parser.add_argument("--grpc-url", default="127.0.0.1:8001")
