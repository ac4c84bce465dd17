"""Serve a model of `real_functions.py` with LitServe: raw bytes, batches where the model takes them."""

import sys
from typing import Annotated, Any

import litserve
from fastapi import Body, Response
from real_servers import PATH, TIMEOUT_S, WAIT_S, model, real_parser, run_server, workers

# LitServe reads the annotations of the methods, so they are not postponed.


class API(litserve.LitAPI):
    """The model."""

    def setup(self, device: str) -> None:
        """Load it."""
        self.model = model()
        self.function = self.model.load()

    def decode_request(self, request: Annotated[bytes, Body()]) -> Any:
        """Read an input."""
        return self.model.decode(request)

    def batch(self, inputs: list[Any]) -> Any:
        """Make a batch of inputs."""
        return self.model.stack(inputs)

    def predict(self, x: Any) -> Any:
        """Compute a batch, or a single input if the model takes no batches."""
        return self.function(x) if self.model.max_batch_size > 1 else self.function([x])[0]

    def unbatch(self, output: Any) -> list[Any]:
        """Split a batch of outputs."""
        return list(output)

    def encode_response(self, output: Any) -> Any:
        """Write an output."""
        return Response(self.model.encode(output), media_type="application/octet-stream")


def _run(port: int) -> None:
    size = model().max_batch_size
    batches = {"max_batch_size": size, "batch_timeout": WAIT_S} if size > 1 else {}
    api = API(api_path=PATH, **batches)
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=workers(), fast_queue=True, timeout=TIMEOUT_S
    )
    server.run(host="127.0.0.1", port=port, log_level="warning", access_log=False, generate_client_file=False)


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        _run(int(sys.argv[2]))
        return
    options = real_parser(__doc__).parse_args()
    run_server(options, "/health", [sys.executable, __file__, "--run", str(options.http_port)])


if __name__ == "__main__":
    main()
