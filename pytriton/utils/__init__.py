"""Helpers that no single part of the package owns."""
