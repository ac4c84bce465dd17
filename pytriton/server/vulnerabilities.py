"""The known vulnerabilities of Triton's versions, read from ``known_vulnerabilities.json``."""

from __future__ import annotations

import enum
import functools
import json
import pathlib
from collections.abc import Sequence
from typing import NamedTuple

from pytriton.server.version import ServerVersion

_FILE = pathlib.Path(__file__).with_name("known_vulnerabilities.json")
_CRITICAL = "critical"


class Reach(enum.Enum):
    """The access that an attacker needs to exploit a vulnerability."""

    REQUEST = "request"
    """No access beyond sending requests."""

    MODEL_REPOSITORY = "model-repository"
    """The access token, unless the endpoint ``model-repository`` is left open."""

    PART = "part"
    """A part of Triton that is not bundled, or is off."""


class Vulnerability(NamedTuple):
    """A vulnerability that NVIDIA has published.

    Attributes:
        cve: Its number.
        score: NVIDIA's, from 0 to 10.
        severity: The score in a word, like ``critical``.
        fixed_in: The release of NVIDIA's container that fixed it, like ``25.07``.
        reach: The access that an attacker needs.
        what: What it does; empty if `part` is set.
        part: The part of Triton that it affects, if that part is not in use.
        why_not: Why that part is not in use.
    """

    cve: str
    score: float
    severity: str
    fixed_in: str
    reach: Reach
    what: str = ""
    part: str = ""
    why_not: str = ""


class KnownVulnerabilities(NamedTuple):
    """The list of known vulnerabilities.

    Attributes:
        as_of: The day on which the list was last compared with NVIDIA's.
        latest_bulletin: The day of the latest bulletin in it.
        releases: The server's version in each release of NVIDIA's container.
        vulnerabilities: The vulnerabilities.
    """

    as_of: str
    latest_bulletin: str
    releases: dict[str, ServerVersion]
    vulnerabilities: Sequence[Vulnerability]

    def of(self, version: ServerVersion, reach: Reach = Reach.REQUEST) -> list[Vulnerability]:
        """Returns the vulnerabilities of a version."""
        return [each for each in self.vulnerabilities if each.reach is reach and version < self.releases[each.fixed_in]]


@functools.cache
def known_vulnerabilities() -> KnownVulnerabilities:
    """Reads the list."""
    data = json.loads(_FILE.read_text(encoding="utf-8"))
    return KnownVulnerabilities(
        data["as_of"],
        data["latest_bulletin"],
        {release: ServerVersion.parse(version) for release, version in data["releases"].items()},
        [Vulnerability(**{**each, "reach": Reach(each["reach"])}) for each in data["vulnerabilities"]],
    )


def summary(version: ServerVersion) -> str | None:
    """Returns one sentence on a version's vulnerabilities; None if it has none that are known.

    Examples:
        >>> summary(ServerVersion(2, 51))
        'Triton 2.51.0 has 42 known vulnerabilities, 5 of them critical; see "Security" in the documentation.'
    """
    found = known_vulnerabilities().of(version)
    if not found:
        return None
    critical = sum(each.severity == _CRITICAL for each in found)
    count = f"{len(found)} known vulnerabilit{'y' if len(found) == 1 else 'ies'}"
    return f'Triton {version} has {count}, {critical or "none"} of them critical; see "Security" in the documentation.'
