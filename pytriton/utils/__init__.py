"""Helpers that belong to no single part of the package."""
