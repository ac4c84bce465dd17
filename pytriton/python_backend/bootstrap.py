"""Starts a worker process in an interpreter that need not have this package: ``python bootstrap.py``.

The package's other modules are found from here, and nothing else of the environment that they are installed in.
"""

import sys

if __name__ == "__main__":
    # This folder, which Python has put first unless it was told not to: it has modules named as some of the standard
    # library's.
    sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]

    import types
    from pathlib import Path

    package = types.ModuleType("pytriton")
    package.__path__ = [str(Path(__file__).resolve().parent.parent)]
    sys.modules["pytriton"] = package

    from pytriton.proxy.worker.process_main import run_worker
    from pytriton.python_backend.loader import complete, load

    run_worker(load, complete)

elif __name__ == "__mp_main__":
    # A process of multiprocessing that the model has started, which imports model.py. A folder of bytecode in the
    # repository would look to a server that watches it like a change of the model.
    sys.dont_write_bytecode = True
