"""The project's tasks: ``nox`` runs the default ones, ``nox -s NAME`` one of them, ``nox --list`` shows all.

``.ci/run`` calls `lint`, `types`, `docs` and `wheel` with ``--no-venv``, in an environment that has all they need.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import nox

nox.needs_version = ">=2024.4.15"
nox.options.sessions = ["lint", "types", "tests", "docs"]
nox.options.reuse_existing_virtualenvs = True

# What a user without a compiler has on PATH; the release wheel has to work with it.
_PLAIN_TOOLS = ("env", "sh", "uname", "ldconfig")

_FUZZERS = (
    "tests/native/test_wire.py",
    "tests/native/test_wire_fuzzing.py",
    "tests/native/test_service_wire.py",
    "tests/native/test_control_channel.py",
    "tests/integration/test_fuzz.py",
    "tests/integration/test_socket_fuzz.py",
    "tests/integration/test_chaos.py",
)


def _install(session: nox.Session, *requirements: str) -> None:
    """Install into the session's virtual environment; does nothing with ``--no-venv``."""
    if session.virtualenv.is_sandboxed:
        session.install(*requirements)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting of Python and C++, the layers of the package, and the Dockerfiles."""
    _install(session, ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "check", "--preview", "--select", "PLW1514", "pytriton")  # text is UTF-8 in any locale
    session.run("ruff", "format", "--check", ".")
    sources = [*Path("pytriton").rglob("*.cc"), *Path("pytriton").rglob("*.h"), *Path("tests").rglob("*.cc")]
    session.run("clang-format", "--dry-run", "-Werror", *map(str, [*sources, *Path("tests").rglob("*.h")]), silent=True)
    session.run("lint-imports", "--no-cache")
    session.run("hadolint", "docker/Dockerfile", "deploy/app/Dockerfile")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types."""
    _install(session, ".[dev,test]")
    session.run("mypy")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the tests, or those given after ``--``."""
    _install(session, ".[test]")
    session.run("pytest", "-m", "not slow", *(session.posargs or ["-n", "auto"]))


@nox.session
def native(session: nox.Session) -> None:
    """Run the backend's native tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""
    _install(session, ".[test]")
    session.run("pytest", "tests/native", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Send random messages and requests, and kill at random, for longer than the tests do."""
    _install(session, ".[test]")
    session.run("pytest", "-m", "slow or not slow", *_FUZZERS, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Run the benchmark; ``nox -s bench -- --quick`` takes a few minutes."""
    session.run("python", "benchmarks/compare.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation."""
    _install(session, ".[docs]")
    session.run("mkdocs", "build", "--strict")  # --quiet would hide warnings from --strict too


@nox.session
def image(session: nox.Session) -> None:
    """Build the container image by buildah, and run it as Kubernetes would; see docs/deploy/container.md."""
    if shutil.which("buildah") is None:
        session.skip("buildah is not installed, which builds images without a daemon")
    _install(session, ".[test]")
    session.run("pytest", "-m", "slow", "tests/deploy/test_image.py", *session.posargs)


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the release wheel into ``dist/``, check it, and use it where there is no compiler."""
    _install(session, ".[release]")
    shutil.rmtree("dist", ignore_errors=True)
    session.run("python", "-m", "build", "--wheel", "--installer", "pip", "--outdir", "dist", silent=True)
    session.run("python", "build_tools/tag_wheel.py", *map(str, Path("dist").glob("*.whl")))
    (built,) = Path("dist").glob("*.whl")
    session.run("twine", "check", "--strict", str(built))
    _use_without_compiler(session, built)


def _use_without_compiler(session: nox.Session, built: Path) -> None:
    """Install a wheel into a fresh environment, and run the quick start, with hardly anything on PATH."""
    with tempfile.TemporaryDirectory() as folder:
        tools = Path(folder, "bin")
        tools.mkdir()
        for tool in _PLAIN_TOOLS:
            found = shutil.which(tool)
            if found:
                (tools / tool).symlink_to(found)
        environment = {name: value for name, value in os.environ.items() if name not in ("CC", "CXX")}
        environment["PATH"] = str(tools)
        python = str(Path(folder, "venv", "bin", "python"))
        session.run(sys.executable, "-m", "venv", str(Path(folder, "venv")), external=True)
        session.run(python, "-m", "pip", "install", "--quiet", str(built.resolve()), env=environment, external=True)
        example = str(Path("examples", "add_sub", "quickstart.py").resolve())
        with session.chdir(folder):
            session.run(python, example, env=environment, external=True)
