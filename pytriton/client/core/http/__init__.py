"""Triton's HTTP API: tensors, requests, messages, connections, and the transports over them."""
