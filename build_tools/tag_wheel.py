"""Give a wheel the tag of the platform that it runs on: ``python tag_wheel.py WHEEL``.

auditwheel determines the oldest manylinux policy that the wheel's libraries allow. It does not graft anything: the
bundled server already has its libraries beside it, under ``pytriton/tritonserver/lib``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

EXPECTED = "manylinux_2_35_x86_64"
"""The bundled server needs glibc 2.35, so no policy is older."""


def platform_of(report: str) -> str:
    """Read the platform tag from the report of ``auditwheel show``.

    Raises:
        ValueError: The report names none.
    """
    found = re.search(r'constrains the platform tag to\s+"([^"]+)"', report)
    if found is None:
        raise ValueError(f"auditwheel names no platform tag:\n{report}")
    return found[1]


def main(wheel: Path) -> int:
    """Check the wheel with auditwheel, and tag it."""
    report = subprocess.run(["auditwheel", "show", str(wheel)], capture_output=True, text=True, check=True).stdout
    platform = platform_of(report)
    if platform != EXPECTED:
        print(f"{wheel.name} runs on {platform} only, where {EXPECTED} is expected:\n{report}", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "wheel", "tags", "--remove", f"--platform-tag={platform}", str(wheel)]
    subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
