"""Loads and calls the ``TritonPythonModel`` of a ``model.py``, and provides the module that it imports.

It runs in a worker process, under any Python from 3.9, and only needs NumPy. `triton_python_backend_utils` is the
module that ``model.py`` imports by that name; `loader` imports ``model.py``, `execution` calls its ``execute``.
"""
