"""What the commands in this folder share: arguments about environments, and how they exit."""

from __future__ import annotations

import argparse
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from environments import REPOSITORY, Contender, SetupError, interpreter, ours_in, prepare_ours
from load import LoadError
from service import ServiceError, no_orphans
from sharing import by_thread


def parser(description: str | None) -> argparse.ArgumentParser:
    """Add the arguments that all commands have."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument(
        "--cache", type=_folder, default=REPOSITORY / "build" / "benchmarks", help="what is installed, kept for later"
    )
    made.add_argument(
        "--python", type=interpreter, default=Path(sys.executable), help="what to make the environments with"
    )
    made.add_argument(
        "--ours-python",
        type=interpreter,
        help="interpreter of an environment where this project is already installed",
    )
    return made


def positive(text: str) -> int:
    """Read a whole number above zero from the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above zero")
    return number


def ours(options: argparse.Namespace) -> Contender:
    """Find or make this project's environment, as the arguments say.

    Raises:
        SetupError: if the repository does not install.
    """
    return ours_in(options.ours_python) if options.ours_python else prepare_ours(options.cache, options.python)


def run(name: str, measure: Callable[[], None]) -> int:
    """Measure; servers are stopped and environments are complete, whatever happens.

    Args:
        name: the command's.
        measure: does its work.

    Returns:
        The exit status.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _frame: sys.exit(128 + received))
    _allow_many_connections()
    try:
        with by_thread(), no_orphans():
            measure()
    except (SetupError, ServiceError, LoadError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _allow_many_connections() -> None:
    """Let this process and its children open as many files as the hard limit allows: each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _folder(name: str) -> Path:
    folder = Path(name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
