"""``pytriton check``: checks the installation, and collects what a bug report needs."""

from __future__ import annotations

import argparse
import importlib.metadata
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from pytriton.cli.output import show
from pytriton.exceptions import PyTritonRuntimeError

NAME = "check"
HELP = "check the installation: versions, ports, and requests to a model over HTTP and gRPC"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options.

    Args:
        parser: The command's.
    """
    parser.add_argument("--server-path", metavar="FOLDER", help="a server of your own, like /opt/tritonserver")
    parser.add_argument("--no-requests", action="store_true", help="do not start the server")
    parser.add_argument("--zip", type=Path, metavar="FILE", help="save everything to a file, for a bug report")


def run(options: argparse.Namespace) -> None:
    """Prints one line for each subject.

    Args:
        options: The options.

    Raises:
        PyTritonRuntimeError: A check failed, or the file cannot be written.
    """
    from pytriton.cli.diagnosis import examine

    with tempfile.TemporaryDirectory(prefix="pytriton-check-") as folder:
        log_file = Path(folder) / "server.log"
        lines, failed = [], []
        for finding in examine(options.server_path, log_file=log_file, send_requests=not options.no_requests):
            lines.append(f"{finding.subject:<16} {finding.text}")
            show(lines[-1])
            if not finding.passed:
                failed.append(finding.subject)
        if options.zip is not None:
            _save(options.zip, lines, log_file)
    if failed:
        raise PyTritonRuntimeError(f"These checks failed: {', '.join(failed)}.")


def _save(path: Path, lines: Sequence[str], log_file: Path) -> None:
    packages = sorted({f"{each.name}=={each.version}" for each in importlib.metadata.distributions()})
    try:
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("check.txt", "\n".join(lines) + "\n")
            archive.writestr("packages.txt", "\n".join(packages) + "\n")
            if log_file.is_file():
                archive.write(log_file, log_file.name)
    except OSError as error:
        raise PyTritonRuntimeError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
