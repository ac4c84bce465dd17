"""Triton's HTTP API: requests, results, messages, connections, and the transports over them."""
