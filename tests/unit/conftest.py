"""Fixtures for unit tests of all folders."""

from __future__ import annotations

import pytest

# Some of what Triton 2.71 lists.
HELP = """Usage: tritonserver [options]
  --help
\tPrint usage

Server:
  --exit-timeout-secs <integer>
  --model-repository <string>
  --model-control-mode <string>
  --load-model <string>
  --backend-directory <string>
  --repoagent-directory <string>
  --cache-directory <string>
  --pinned-memory-pool-byte-size <integer>

Metrics:
  --allow-gpu-metrics <boolean>
  --metrics-port <integer>

HTTP:
  --http-port <integer>
\tThe port for the server to listen on for HTTP requests.
  --http-max-input-size <integer>
\tMaximum allowed HTTP request input size in bytes; see --http-port.
  --http-restricted-api <string>:<string>=<string>

GRPC:
  --grpc-port <integer>
  --grpc-infer-thread-count <integer>
  --grpc-max-response-pool-size <integer>
  --grpc-restricted-protocol <<string>:<string>=<string>>

Shared Memory:
  --allow-client-shm <boolean>
"""


@pytest.fixture
def current_server(tmp_path):
    """The folder of a stand-in for a current server, which counts how often it is run."""
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    (tmp_path / "help").write_text(HELP)
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/runs\ncat {tmp_path}/help\nexit 1\n")
    program.chmod(0o755)
    (tmp_path / "TRITON_VERSION").write_text("2.71.0\n")
    return tmp_path


@pytest.fixture(autouse=True)
def no_server_of_the_environment(monkeypatch):
    """Takes away the server that the whole suite may be run with: unit tests start none."""
    monkeypatch.delenv("PYTRITON_SERVER_PATH", raising=False)
