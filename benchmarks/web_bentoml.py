"""Serves the functions of `web_functions.py` with BentoML."""

import sys
from collections.abc import Iterator
from typing import Any

import bentoml
import numpy as np
from serve import parser, serve_command
from web_functions import IMAGE, STREAM, TINY, double, event_of, from_base64, path, to_base64, tokens


@bentoml.service(workers=1, http={"host": "127.0.0.1"}, logging={"access": {"enabled": False}})
class Functions:
    """Serves all functions."""

    @bentoml.api(route=path(TINY))
    async def tiny(self, x: list[float]) -> dict[str, Any]:
        """Doubles numbers."""
        return {"y": double(np.array(x, np.float32)).tolist()}

    @bentoml.api(route=path(IMAGE))
    async def image(self, tensor: str) -> dict[str, str]:
        """Doubles an image."""
        return {"tensor": to_base64(double(from_base64(tensor)))}

    @bentoml.api(route=path(STREAM))
    def stream(self, count: int) -> Iterator[str]:
        """Streams tokens."""
        for token in tokens(count):
            yield event_of(token)


def main() -> None:
    """Serves until standard input closes."""
    options = parser(__doc__).parse_args()
    command = [sys.executable, "-m", "bentoml", "serve", "web_bentoml:Functions", f"--port={options.http_port}"]
    serve_command(options.http_port, ["/readyz"], command)


if __name__ == "__main__":
    main()
