"""Validates objects of Prometheus' and KEDA's operators by the npm packages ``@kubernetes-models``.

Their schemas let unknown fields pass, so names of fields are looked up in their declarations for TypeScript.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

PACKAGES = ["@kubernetes-models/prometheus-operator@6.0.0", "@kubernetes-models/keda@2.0.0"]
KINDS = {
    "PodMonitor": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1/PodMonitor",
    "ScaledObject": "@kubernetes-models/keda/keda.sh/v1alpha1/ScaledObject",
}
KINDS_OF_RAY = {"ScrapeConfig": "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1alpha1/ScrapeConfig"}

_ALL = KINDS | KINDS_OF_RAY

# Reads objects, and prints for each what is wrong with it, or null.
_SCRIPT = """
import { readFileSync } from "node:fs";
const [kinds, objects] = JSON.parse(readFileSync(0));
const found = [];
for (const object of objects) {
  const { [object.kind]: Kind } = await import(kinds[object.kind]);
  try {
    new Kind(object).validate();
    found.push(null);
  } catch (error) {
    found.push(error.message);
  }
}
console.log(JSON.stringify(found));
"""
_IMPORT = re.compile(r'from "(.+?)"')
_FIELD = re.compile(r'^ +"(\w+)"\??:', re.MULTILINE)
_FREE = ("annotations", "labels", "matchLabels", "metadata")  # whose keys are the user's own
_UNREACHABLE = ("EAI_AGAIN", "ECONNREFUSED", "ENOTFOUND", "ETIMEDOUT", "network")


def install(folder: Path) -> None:
    """Installs the packages below a folder; skips the test if they are not to be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed, which have the schemas of Prometheus' and KEDA's operators")
    command = [
        npm,
        "install",
        "--silent",
        "--prefer-offline",
        "--ignore-scripts",
        "--no-audit",
        "--no-fund",
        "--prefix",
        folder,
        *PACKAGES,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    if done.returncode and any(word in said for word in _UNREACHABLE):
        pytest.skip(f"the npm registry is out of reach: {said}")
    assert done.returncode == 0, said


def problems(folder: Path, objects: list[dict[str, Any]]) -> list[str | None]:
    """The mistakes in each object, found by the packages below the folder."""
    script = folder / "validate.mjs"
    script.write_text(_SCRIPT)
    done = subprocess.run(
        ["node", script],
        input=json.dumps([_ALL, objects]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: list[str | None] = json.loads(done.stdout)
    return found


def unknown_fields(folder: Path, manifest: dict[str, Any]) -> set[str]:
    """The names of fields that neither the object's kind nor a type that it is made of has."""
    modules = folder / "node_modules"
    known: set[str] = set()
    seen: set[Path] = set()
    found = [(modules / _ALL[manifest["kind"]]).with_suffix(".d.ts")]
    while found:
        file = found.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        text = file.read_text()
        known.update(_FIELD.findall(text))
        for target in _IMPORT.findall(text):
            place = file.parent if target.startswith(".") else modules
            found.append((place / f"{target.removesuffix('.js')}.d.ts").resolve())
    return {name for name in _names(manifest) if name not in known}


def _names(value: Any) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(_names, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(_names(each) for name, each in value.items() if name not in _FREE))
