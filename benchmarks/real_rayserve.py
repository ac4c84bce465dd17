"""Serve a model of `real_functions.py` with Ray Serve: raw bytes, and batches where the model takes them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import ray
from ray import serve
from real_functions import MODELS
from real_servers import PATH, WAIT_S, model, real_parser, run_server, workers
from starlette.requests import Request
from starlette.responses import Response

_MOST_AT_ONCE = 2048  # requests that a replica takes; more would wait in the proxy


class Computer:
    """The model."""

    def __init__(self, name: str) -> None:
        self.model = MODELS[name]
        self.function = self.model.load()
        if self.model.max_batch_size > 1:
            self._batched.set_max_batch_size(self.model.max_batch_size)  # type: ignore[attr-defined]

    async def __call__(self, request: Request) -> Response:
        """Compute what a request has."""
        x = self.model.decode(await request.body())
        if self.model.max_batch_size > 1:
            output = await self._batched(x)
        else:
            [output] = self.function([x])
        return Response(self.model.encode(output), media_type="application/octet-stream")

    @serve.batch(max_batch_size=1, batch_wait_timeout_s=WAIT_S)
    async def _batched(self, inputs: list[Any]) -> list[Any]:
        return list(self.function(self.model.stack(inputs)))


def _run(port: int) -> None:
    ray.init(include_dashboard=False, log_to_driver=False, num_cpus=workers() + 2)
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    options: dict[str, Any] = {"num_cpus": 1, "runtime_env": {"env_vars": dict(os.environ)}}
    deployment: Any = serve.deployment(
        num_replicas=workers(), max_ongoing_requests=_MOST_AT_ONCE, ray_actor_options=options
    )(Computer)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    serve.run(deployment.bind(model().name), route_prefix=PATH)
    ended.wait()
    ray.shutdown()  # stops Serve, too, whose own shutdown waits for what has already ended


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        _run(int(sys.argv[2]))
        return
    options = real_parser(__doc__).parse_args()
    os.environ["RAY_SERVE_THROUGHPUT_OPTIMIZED"] = "1"
    run_server(options, "/-/healthz", [sys.executable, __file__, "--run", str(options.http_port)])


if __name__ == "__main__":
    main()
