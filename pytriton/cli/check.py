"""``pytriton check``: shows the versions of everything, and what is known about the server."""

from __future__ import annotations

import argparse
import platform

from pytriton import __version__
from pytriton.server.capabilities import flags_of
from pytriton.server.files import find_server
from pytriton.server.version import version_of
from pytriton.server.vulnerabilities import summary
from pytriton.server.workarounds import Workaround

NAME = "check"
HELP = "show versions, and what is known about the server"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the server's folder.

    Args:
        parser: The command's.
    """
    parser.add_argument("--server-path", metavar="FOLDER", help="a server of your own, like /opt/tritonserver")


def run(options: argparse.Namespace) -> None:
    """Prints one line for each thing."""
    files = find_server(options.server_path)
    version = version_of(files.root)
    kind = "bundled" if files.is_bundled else "not bundled"
    print(f"PyTriton         {__version__}")
    print(f"Python           {platform.python_version()}")
    print(f"System           {platform.platform()}")
    print(f"Server           Triton {version or 'of an unknown version'} ({kind}), {files.root}")
    if version is not None:
        print(f"Vulnerabilities  {summary(version) or 'none that are known'}")
    print(f"Workarounds      {', '.join(each.key for each in Workaround if each.is_needed(version))}")
    print(f"Flags            {len(flags_of(files))}")
