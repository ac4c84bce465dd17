"""What a ``model.py`` with a ``TritonPythonModel`` needs: the module that it imports, and what loads and calls it.

It runs in a worker process, under any Python from 3.9, and needs NumPy alone. `triton_python_backend_utils` is the
module that ``model.py`` imports by that name; `loader` imports ``model.py``, `execution` has its ``execute`` called.
"""
