"""Starts a worker process in an interpreter that need not have this package: ``python bootstrap.py``.

The package's other modules are found from here, and nothing else of the environment that they are installed in.
"""

import sys
import types
from pathlib import Path

package = types.ModuleType("pytriton")
package.__path__ = [str(Path(__file__).resolve().parent.parent)]
sys.modules["pytriton"] = package
sys.path.pop(0)  # this folder

if __name__ == "__main__":
    from pytriton.proxy.host import main

    main()
