"""Bound models, and the manager that deploys them to the server."""
