"""Triton's gRPC API: requests, results, channels, and the transports over them."""
