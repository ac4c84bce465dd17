"""Serves the functions of `web_functions.py` with LitServe, in batches."""

import sys
from typing import Any

import litserve
import numpy as np
from serve import parser, serve_command
from web_functions import IMAGE, STREAM, TINY, double, event_of, from_base64, path, to_base64, tokens
from workloads import MAX_BATCH_SIZE

# LitServe reads the annotations of the methods, so they are not postponed.


class Tiny(litserve.LitAPI):
    """Doubles numbers."""

    def setup(self, device: str) -> None:
        """Needs nothing."""

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Takes the input."""
        return np.array(request["x"], np.float32)

    def predict(self, x: Any) -> Any:
        """Computes a batch."""
        return double(x)

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Writes the output."""
        return {"y": output.tolist()}


class Image(Tiny):
    """Doubles an image."""

    def decode_request(self, request: dict[str, Any]) -> Any:
        """Takes the input."""
        return from_base64(request["tensor"])

    def encode_response(self, output: Any) -> dict[str, Any]:
        """Writes the output."""
        return {"tensor": to_base64(output)}


class Stream(litserve.LitAPI):
    """Streams tokens."""

    def setup(self, device: str) -> None:
        """Needs nothing."""

    def decode_request(self, request: dict[str, Any]) -> int:
        """Takes the input."""
        return int(request["count"])

    def predict(self, count: int) -> Any:
        """Generates a text."""
        yield from tokens(count)

    def encode_response(self, output: Any) -> Any:
        """Writes the tokens."""
        for token in output:
            yield event_of(token)


def _run(port: int, name: str) -> None:
    batches = {"max_batch_size": MAX_BATCH_SIZE, "batch_timeout": 0.001}
    api: litserve.LitAPI
    match name:
        case "tiny":
            api = Tiny(api_path=path(TINY), **batches)
        case "image":
            api = Image(api_path=path(IMAGE), **batches)
        case _:
            api = Stream(api_path=path(STREAM), stream=True)
    server = litserve.LitServer(api, accelerator="cpu", fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="warning", access_log=False, generate_client_file=False)


def main() -> None:
    """Serves until standard input closes."""
    if sys.argv[1] == "--run":
        _run(int(sys.argv[2]), sys.argv[3])
        return
    made = parser(__doc__)
    made.add_argument("--function", required=True)
    options = made.parse_args()
    command = [sys.executable, __file__, "--run", str(options.http_port), options.function]
    serve_command(options.http_port, ["/health"], command)


if __name__ == "__main__":
    main()
