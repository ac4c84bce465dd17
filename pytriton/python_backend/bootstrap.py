"""Starts a worker process in an interpreter that may lack this package: ``python bootstrap.py``.

The package's other modules are found from here, but nothing else of the environment in which they are installed.
"""

import sys

if __name__ == "__main__":
    # Python usually puts this folder first, but it has modules with the names of some in the standard library.
    sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.append("")  # modules in the folder in which the server was started, as in Triton

    import types
    from pathlib import Path

    package = types.ModuleType("pytriton")
    package.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["pytriton"] = package

    from pytriton.proxy.worker.process_main import run_worker
    from pytriton.python_backend.loader import complete, load
    from pytriton.python_backend.logger import log_to_server

    log_to_server()
    run_worker(load, complete)

elif __name__ == "__mp_main__":
    # This is a process that the model has started through multiprocessing, which imports model.py. To a server that
    # watches the repository, a folder of bytecode would look like a change of the model.
    sys.dont_write_bytecode = True
