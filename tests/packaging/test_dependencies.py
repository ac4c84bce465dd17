"""Versions of dependencies that have known vulnerabilities are not allowed."""

from __future__ import annotations

import pathlib

import pytest
from packaging.requirements import Requirement

tomllib = pytest.importorskip("tomllib")  # since Python 3.11

PYPROJECT = pathlib.Path(__file__).parents[2] / "pyproject.toml"
# The last vulnerable version, as far as we know, in the oldest line that we allow.
VULNERABLE = {
    "grpcio": "1.65.3",  # CVE-2024-7246
    "pillow": "12.1.0",  # CVE-2026-25990
    "protobuf": "4.25.7",  # CVE-2025-4565
    "python-multipart": "0.0.21",  # CVE-2026-24486
    "scikit-learn": "1.4.2",  # CVE-2024-5206
    "starlette": "0.49.0",  # CVE-2025-62727
    "torch": "2.5.1",  # CVE-2025-32434
    "tqdm": "4.66.2",  # CVE-2024-34062
    "transformers": "4.52.4",  # CVE-2025-6921 and others
}


def allowed():
    """What users install: the package's own requirements, and those of its extras."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in ("dev", "test")}
    return [Requirement(text) for texts in (project["dependencies"], *extras.values()) for text in texts]


@pytest.mark.parametrize("name", VULNERABLE)
def test_no_version_with_a_known_vulnerability_is_allowed(name):
    requirements = [each for each in allowed() if each.name == name]

    assert requirements
    assert not [str(each) for each in requirements if each.specifier.contains(VULNERABLE[name])]
