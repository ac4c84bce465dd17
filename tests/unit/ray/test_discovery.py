"""Targets for Prometheus, over HTTP and in a file."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip("ray.serve")

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.ray.pools import discovery
from pytriton.ray.pools.discovery import DiscoveryServer, Targets, keep_file

TARGETS = [{"targets": ["10.0.0.4:16500"], "labels": {"pool": "double", "replica": "a", "node": "b"}}]


@contextlib.contextmanager
def serving(read: Targets) -> Iterator[str]:
    """The host and port of a server."""
    server = DiscoveryServer("127.0.0.1", 0, read)
    server.start()
    try:
        yield urlsplit(server.url).netloc
    finally:
        server.stop()


def request(place: str, path: str = "/", method: str = "GET") -> tuple[int, str | None, Any]:
    """The status, the content type, and the JSON of a response."""
    connection = http.client.HTTPConnection(place, timeout=10)
    with contextlib.closing(connection):
        connection.request(method, path)
        response = connection.getresponse()
        content_type = response.getheader("Content-Type")
        body = response.read()
        return response.status, content_type, json.loads(body) if content_type == "application/json" else None


def test_targets_have_the_format_of_prometheus() -> None:
    with serving(lambda: TARGETS) as place:
        assert request(place) == (200, "application/json", TARGETS)


def test_each_response_has_the_current_targets() -> None:
    targets: list[dict[str, Any]] = []
    with serving(lambda: targets) as place:
        assert request(place)[2] == []
        targets.extend(TARGETS)
        assert request(place)[2] == TARGETS


def test_a_cluster_that_does_not_respond_is_an_error() -> None:
    def fail() -> list[dict[str, Any]]:
        raise TimeoutError

    with serving(fail) as place:
        status, _, body = request(place)
    assert status == 503 and "does not respond" in body["error"]


def test_other_paths_and_methods_are_refused() -> None:
    with serving(lambda: TARGETS) as place:
        assert request(place, "/other")[0] == 404
        assert request(place, method="POST")[0] == 501


def test_a_port_in_use_is_named() -> None:
    with serving(lambda: TARGETS) as place, pytest.raises(PyTritonRuntimeError, match=place.partition(":")[2]):
        DiscoveryServer("127.0.0.1", int(place.partition(":")[2]))


class TestFile:
    @pytest.fixture(autouse=True)
    def quick(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(discovery, "_FILE_INTERVAL_S", 0.0)

    def test_follows_the_targets_and_survives_failures(self, tmp_path: Path) -> None:
        file, ending, seen = tmp_path / "targets.json", threading.Event(), []
        results: list[Any] = [[], TimeoutError(), TARGETS, TimeoutError()]

        def read() -> list[dict[str, Any]]:
            if file.exists():
                seen.append(json.loads(file.read_text()))
            if not results:
                ending.set()
                return TARGETS
            result = results.pop(0)
            if isinstance(result, Exception):
                raise result
            found: list[dict[str, Any]] = result
            return found

        keep_file(file, ending, read)
        assert seen == [[], [], TARGETS, TARGETS]
        assert [each.name for each in tmp_path.iterdir()] == ["targets.json"]
        assert file.stat().st_mode & 0o777 == 0o644  # Prometheus is another user

    def test_is_not_written_while_nothing_changes(self, tmp_path: Path) -> None:
        file, ending, inodes = tmp_path / "targets.json", threading.Event(), []

        def read() -> list[dict[str, Any]]:
            if file.exists():
                inodes.append(file.stat().st_ino)
            if len(inodes) == 3:
                ending.set()
            return TARGETS

        keep_file(file, ending, read)
        assert len(set(inodes)) == 1

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(PyTritonRuntimeError, match=r"missing/targets\.json' cannot be written: No such file"):
            keep_file(tmp_path / "missing" / "targets.json", threading.Event(), lambda: TARGETS)
