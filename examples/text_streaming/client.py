"""Streams text from the model of ``server.py`` over gRPC: ``python examples/text_streaming/client.py "The class"``."""

from __future__ import annotations

import argparse
import queue
import sys
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import tritonclient.grpc
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

MODEL_NAME = "Writer"
LINE_LENGTH = 72


def stream(url: str, prompts: Sequence[str], **options: float) -> Generator[tuple[int, str], None, None]:
    """Streams several texts at the same time over one connection; closing the generator cancels those in progress.

    Args:
        url: Host and port of the server's gRPC endpoint, without a scheme.
        prompts: The start of each text.
        **options: ``max_tokens`` and ``temperature``, in place of the model's defaults.

    Yields:
        The position of a prompt and the next piece of its text, as the pieces arrive.

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
    """Prints texts as they arrive: one of them piece by piece, several line by line."""
    with closing(stream(url, prompts, **options)) as pieces:
        if len(prompts) == 1:
            print(prompts[0], end="", flush=True)
            for _, text in pieces:
                print(text, end="", flush=True)
            print()
            return
        lines = list(prompts)
        for position, text in pieces:
            lines[position] += text.replace("\n", " ")
            if len(lines[position]) > LINE_LENGTH:
                line, _, lines[position] = lines[position].rpartition(" ")
                print(f"{position + 1} | {line}", flush=True)
        for position, line in enumerate(lines):
            print(f"{position + 1} | {line}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream text from the model of server.py, over gRPC.")
    parser.add_argument("prompts", nargs="*", default=["The "], help="starts of texts, generated at the same time")
    parser.add_argument("--grpc-url", default="127.0.0.1:8001", help="host and port of the server's gRPC endpoint")
    parser.add_argument("--max-tokens", type=int, default=400, help="characters of each text")
    parser.add_argument("--temperature", type=float, default=0.5, help="randomness, from 0 to 2")
    arguments = parser.parse_args()
    try:
        show(
            arguments.grpc_url,
            arguments.prompts,
            max_tokens=arguments.max_tokens,
            temperature=arguments.temperature,
        )
    except InferenceServerException as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # the texts have been cancelled
        print()


if __name__ == "__main__":
    main()
