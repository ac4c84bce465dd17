"""Relays batches between the server and inference callables.

The proxy has two halves that use one protocol: ``backend/`` (C++, inside the server) and the modules here (inside the
user's process). Their folders have the same names and build on one another in this order: :mod:`wire`,
:mod:`transport`, :mod:`tensors`, :mod:`services`, :mod:`worker`. ``docs/architecture.md`` follows a request through
them.
"""
