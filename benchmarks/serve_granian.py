"""Serve a workload with Granian, a server in Rust, and a function of its own interface, RSGI: raw bytes, no batches."""

from __future__ import annotations

import sys

from serve import serve_command, workload_parser


def main() -> None:
    """Serve until standard input closes."""
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, "-m", "granian", "--interface=rsgi", f"rsgi_apps:{options.workload}"]
    command += ["--host=127.0.0.1", f"--port={options.http_port}", f"--workers={options.instances}", "--loop=uvloop"]
    command += ["--backlog=4096", "--backpressure=4096", "--no-ws", "--http=1", "--log-level=warning"]
    serve_command(options.http_port, ["/ready"], command)


if __name__ == "__main__":
    main()
