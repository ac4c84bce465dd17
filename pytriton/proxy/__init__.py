"""Relays batches between the server and inference callables.

The proxy has two halves that speak one protocol: ``backend/`` (C++, inside the server) and the modules here (inside the
user's process). A batch passes through them in this order: :mod:`channel` hears a bell, :mod:`batch` reads the requests
out of the :mod:`arena`, :mod:`worker` calls the inference callable, :mod:`responses` writes what it returned.
"""
