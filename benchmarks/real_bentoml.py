"""Serve a model of `real_functions.py` with BentoML: base64 in JSON, because its batches take no raw bytes."""

import sys

from real_servers import real_parser, run_server


def main() -> None:
    """Serve until standard input closes."""
    options = real_parser(__doc__).parse_args()
    command = [sys.executable, "-m", "bentoml", "serve", "real_bentoml_service:Service", f"--port={options.http_port}"]
    run_server(options, "/readyz", [*command, "--backlog=4096"])


if __name__ == "__main__":
    main()
