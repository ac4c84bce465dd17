"""Finds the folder of the package, and the Triton server in it."""

from __future__ import annotations

import pathlib

import pytriton

__all__ = ["get_root_module_path"]


def get_root_module_path() -> pathlib.Path:
    """Returns the folder of the package, whose folder ``tritonserver`` has the bundled server.

    Programs start that server themselves: ``get_root_module_path() / "tritonserver" / "bin" / "tritonserver"``.
    """
    folders = [pathlib.Path(folder) for folder in pytriton.__path__]  # an editable install has two
    return next((folder for folder in folders if (folder / "tritonserver").is_dir()), folders[0])
