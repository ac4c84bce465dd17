"""Bound models: one binding each, and the manager of what the server has loaded."""
