"""Makes the models' environment: ``python examples/python_backend/custom_environment/make_environment.py``."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent
ENVIRONMENT = FOLDER / "models" / "from_folder" / "environment"
ARCHIVE = FOLDER / "models" / "from_archive" / "environment.tar.gz"


def main() -> None:
    parser = argparse.ArgumentParser(description="Make an environment for the models, as a folder and as an archive.")
    parser.add_argument("--python", default=sys.executable, help="the interpreter to make it with, from 3.9 on")
    arguments = parser.parse_args()
    subprocess.run([arguments.python, "-m", "venv", "--clear", ENVIRONMENT], check=True)
    pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--quiet", "--requirement", str(FOLDER / "requirements.txt")], check=True)
    with tarfile.open(ARCHIVE, "w:gz", compresslevel=1) as archive:
        archive.add(ENVIRONMENT, ".")
    print(f"made {ENVIRONMENT.relative_to(FOLDER)} and {ARCHIVE.relative_to(FOLDER)}")


if __name__ == "__main__":
    main()
