"""The list of known vulnerabilities, and descriptions of versions."""

from __future__ import annotations

import re

import pytest

from pytriton.server.version import ServerVersion
from pytriton.server.vulnerabilities import Reach, known_vulnerabilities, summary

KNOWN = known_vulnerabilities()


@pytest.mark.parametrize("each", KNOWN.vulnerabilities, ids=lambda each: each.cve)
def test_each_vulnerability_is_complete(each):
    assert re.fullmatch(r"CVE-20\d\d-\d{4,}", each.cve)
    assert each.fixed_in in KNOWN.releases
    assert each.severity == ("critical" if each.score >= 9 else "high" if each.score >= 7 else "medium")
    assert (each.what == "") == (each.reach is Reach.PART)
    assert (each.part == "") == (each.why_not == "") == (each.reach is not Reach.PART)


def test_no_vulnerability_is_listed_twice():
    names = [each.cve for each in KNOWN.vulnerabilities]
    assert len(set(names)) == len(names)


def test_releases_are_in_the_order_of_their_versions():
    assert list(KNOWN.releases.values()) == sorted(KNOWN.releases.values())
    assert list(KNOWN.releases) == sorted(KNOWN.releases)


def test_the_description_of_the_bundled_server():
    assert summary(ServerVersion(2, 51)) == (
        'Triton 2.51.0 has 42 known vulnerabilities, 5 of them critical; see "Security" in the documentation.'
    )


def test_a_version_has_the_vulnerabilities_fixed_after_it():
    version = KNOWN.releases["26.03"]
    assert {each.fixed_in for each in KNOWN.of(version)} == {"26.04", "26.05", "26.06", "26.07"}


def test_a_single_vulnerability_is_in_the_singular():
    assert summary(KNOWN.releases["26.06"]) == (
        'Triton 2.70.0 has 1 known vulnerability, none of them critical; see "Security" in the documentation.'
    )


def test_a_current_server_has_no_description():
    assert summary(KNOWN.releases["26.07"]) is None
    assert summary(ServerVersion(3, 0)) is None
