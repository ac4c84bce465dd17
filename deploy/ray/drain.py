"""Makes Ray Serve move this node's replicas elsewhere, and waits until they are gone, before a pod stops.

Run as ``python drain.py SECONDS``, with the time limit.
"""

import logging
import subprocess
import sys
import time
from pathlib import Path

import ray

REPLICA = b"ray::ServeReplica"  # the name of the process of a replica of Ray Serve


def main(seconds):
    deadline = time.monotonic() + seconds
    ray.init(address="auto", logging_level=logging.ERROR, log_to_driver=False)
    node = ray.get_runtime_context().get_node_id()
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "The pod stops."]
    subprocess.run(
        ["ray", "drain-node", "--node-id", node, *reason, "--deadline-remaining-seconds", str(seconds)], check=True
    )
    while time.monotonic() < deadline and has_replicas():
        time.sleep(1)


def has_replicas():
    return any(REPLICA in command_line(process) for process in Path("/proc").glob("[0-9]*"))


def command_line(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:  # it has exited
        return b""


if __name__ == "__main__":
    main(int(sys.argv[1]))
