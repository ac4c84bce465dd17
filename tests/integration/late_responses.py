"""Counts a model's late responses: a program with few steps, so that requests come just before the instance is idle."""

from __future__ import annotations

import concurrent.futures
import json
import socket
import sys
import time

CLIENTS = 2
REQUESTS = 1000  # of each
LATE_S = 0.3  # Triton's batcher looks at its queue by itself 0.5 s after it did so last


def request_for(host, model):
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
    wanted = {"name": "y", "parameters": {"binary_data": True}}
    head = json.dumps({"inputs": [tensor], "outputs": [wanted]})
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", f"Host: {host}", f"Content-Length: {len(head) + 4}"]
    lines += [f"Inference-Header-Content-Length: {len(head)}", "", head]
    return "\r\n".join(lines).encode() + bytes(4)


def count_late_responses(host, port, request):
    late = 0
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(REQUESTS):
            sent = time.monotonic()
            connection.sendall(request)
            assert b"200 OK" in connection.recv(65536)
            late += time.monotonic() - sent > LATE_S
    return late


def main():
    host, port, model = sys.argv[1:]
    request = request_for(host, model)
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        print(sum(pool.map(lambda _: count_late_responses(host, int(port), request), range(CLIENTS))))


if __name__ == "__main__":
    main()
