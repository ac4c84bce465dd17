"""Serve a model of `real_functions.py` with mosec: raw bytes, batches where the model takes them."""

from __future__ import annotations

import sys
from typing import Any

from mosec import Server, Worker
from real_servers import TIMEOUT_S, WAIT_S, model, real_parser, run_server, workers


class Computer(Worker):
    """The model."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.model = model()
        self.function = self.model.load()

    def deserialize(self, data: bytes) -> Any:
        """Read an input."""
        return self.model.decode(data)

    def serialize(self, data: Any) -> bytes:
        """Write an output."""
        return self.model.encode(data)

    def forward(self, data: Any) -> Any:
        """Compute a batch, or a single input if the model takes no batches."""
        if self.model.max_batch_size > 1:
            return list(self.function(self.model.stack(data)))
        return self.function([data])[0]


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        del sys.argv[1]  # mosec reads the rest
        server = Server()
        size = model().max_batch_size
        batches = {"max_batch_size": size, "max_wait_time": round(WAIT_S * 1000)} if size > 1 else {}
        server.append_worker(Computer, num=workers(), timeout=TIMEOUT_S, **batches)
        server.run()
        return
    options = real_parser(__doc__).parse_args()
    command = [sys.executable, __file__, "--run", "--address=127.0.0.1", f"--port={options.http_port}"]
    run_server(options, "/", [*command, "--log-level=warning", f"--timeout={TIMEOUT_S * 1000}"])


if __name__ == "__main__":
    main()
