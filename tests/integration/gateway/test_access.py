"""API keys."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import serving
from gateways import gateway_of

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.gateway import create_key
from pytriton.gateway.access import ApiKey, KeyStore
from pytriton.gateway.errors import RequestError

SAMPLE = {"x": [1]}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.json"


def bearer(key):
    return {"authorization": f"Bearer {key}"}


def test_requests_require_a_key(served, path):
    key = create_key(path, "alice")
    with gateway_of(served, api_keys=path) as gateway:
        refused = gateway.post("Double", SAMPLE)
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert gateway.post("Double", SAMPLE, **bearer("wrong")).status == 401
        assert gateway.post("Double", SAMPLE, **bearer(key)).json() == {"y": [2]}
        assert gateway.post("Double", SAMPLE, x_api_key=key).status == 200
        assert gateway.get("/v1/models").status == 401
        assert gateway.get("/v2/models/Double").status == 401
        assert gateway.get("/health/ready").status == 200


def test_a_key_for_some_models(served, path):
    key = create_key(path, "alice", models=["Double"])
    with gateway_of(served, api_keys=path) as gateway:
        assert gateway.post("Double", SAMPLE, **bearer(key)).status == 200
        assert gateway.post("Single", SAMPLE, **bearer(key)).status == 403
        assert gateway.get("/v2/models/Single/config", **bearer(key)).status == 403
        assert [model["id"] for model in gateway.get("/v1/models", **bearer(key)).json()["data"]] == ["Double"]
        index = json.loads(gateway.send("POST", "/v2/repository/index", **bearer(key)).body)
        assert [model["name"] for model in index] == ["Double"]
        statistics = gateway.get("/v2/models/stats", **bearer(key)).json()["model_stats"]
        assert {model["name"] for model in statistics} == {"Double"}


def test_a_rate(served, path):
    key = create_key(path, "alice", rate=0.01)
    with gateway_of(served, api_keys=path) as gateway:
        assert gateway.post("Double", SAMPLE, **bearer(key)).status == 200
        refused = gateway.post("Double", SAMPLE, **bearer(key))
        assert refused.status == 429
        assert 90 <= int(refused.headers["retry-after"]) <= 100


def test_a_rate_also_counts_requests_that_run_no_model(served, path):
    key = create_key(path, "alice", rate=0.01)
    with gateway_of(served, api_keys=path) as gateway:
        assert gateway.get("/status", **bearer(key)).status == 200
        for url in ("/status", "/openapi.json", "/v1/models", "/v1/models/Nobody", "/v2/models/Double/stats"):
            assert gateway.get(url, **bearer(key)).status == 429
        assert gateway.get("/health/ready").status == 200


def test_the_access_log_names_the_key(served, path, caplog):
    caplog.set_level(logging.INFO, "pytriton.gateway.access")
    key = create_key(path, "alice")
    with gateway_of(served, api_keys=path, access_log=True) as gateway:
        assert gateway.post("Double", SAMPLE, **bearer(key)).status == 200
        assert gateway.post("Double", SAMPLE, **bearer("wrong")).status == 401
    known, unknown = (record for record in caplog.records if record.name == "pytriton.gateway.access")
    assert known.api_key == "alice"
    assert known.getMessage().startswith("POST '/v1/models/Double' from 127.0.0.1 with key 'alice': status 200 after ")
    assert unknown.getMessage().startswith("POST '/v1/models/Double' from 127.0.0.1: status 401 after ")
    assert not hasattr(unknown, "api_key")
    assert key not in caplog.text


def test_a_number_of_requests_in_flight(served, path):
    key = create_key(path, "alice", max_requests=1)
    with gateway_of(served, api_keys=path) as gateway, contextlib.closing(gateway.connection()) as connection:
        connection.request("POST", "/v1/models/Wait", b'{"x": [1]}', bearer(key))
        connection.getresponse().readline()
        assert gateway.post("Double", SAMPLE, **bearer(key)).status == 429


def test_keys_are_hashed_and_readable_by_their_owner_only(path):
    key = create_key(path, "alice")
    assert key not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(PyTritonBadParameterError, match="already has a key named 'alice'"):
        create_key(path, "alice")


def test_keys_that_are_created_at_the_same_time(path):
    names = [f"owner{number}" for number in range(20)]
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(functools.partial(create_key, path), names))
    assert sorted(key["name"] for key in json.loads(path.read_text())["keys"]) == sorted(names)


def test_a_file_that_exists_keeps_its_mode_and_its_links(path):
    real = path.with_name("real.json")
    path.symlink_to(real)
    create_key(path, "alice")
    real.chmod(0o640)
    create_key(path, "bob")
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert len(json.loads(real.read_text())["keys"]) == 2


@pytest.mark.skipif(os.getuid() != 0, reason="only root may give a file away")
def test_root_leaves_the_file_to_the_user_of_the_gateway(path):
    create_key(path, "alice")
    os.chown(path, 1234, 1234)
    create_key(path, "bob")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 1234)


def test_a_file_that_cannot_be_written(path):
    with pytest.raises(PyTritonBadParameterError, match=r"keys\.json cannot be written .*: No such file or directory"):
        create_key(path.parent / "none" / "keys.json", "alice")


def test_a_full_disk_leaves_no_draft(path, monkeypatch):
    create_key(path, "alice")
    monkeypatch.setattr("pathlib.Path.replace", raise_no_space)
    with pytest.raises(PyTritonBadParameterError, match="No space left on device"):
        create_key(path, "bob")
    assert [entry.name for entry in path.parent.iterdir()] == ["keys.json"]


def raise_no_space(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_file_is_utf_8_in_any_locale(path, run_in_c_locale):
    create_key(path, "Jürgen")
    path.write_text(json.dumps(json.loads(path.read_text()), ensure_ascii=False), encoding="utf-8")
    run_in_c_locale("import sys; from pytriton.gateway import create_key; create_key(sys.argv[1], 'Zo\\xeb')", path)
    assert [key["name"] for key in json.loads(path.read_text())["keys"]] == ["Jürgen", "Zoë"]


def test_a_changed_file_is_reloaded(served, path):
    alice = create_key(path, "alice")
    with gateway_of(served, api_keys=path) as gateway:
        bob = create_key(path, "bob")
        serving.wait_until(lambda: gateway.post("Double", SAMPLE, **bearer(bob)).status == 200)
        assert gateway.post("Double", SAMPLE, **bearer(alice)).status == 200
        path.write_text('{"keys": []}')
        serving.wait_until(lambda: gateway.post("Double", SAMPLE, **bearer(alice)).status == 401)


def test_a_file_is_reloaded_although_the_working_directory_has_changed(path, monkeypatch):
    key = create_key(path, "alice")
    now = [0.0]
    monkeypatch.setattr("pytriton.gateway.access.time.monotonic", lambda: now[0])
    monkeypatch.chdir(path.parent)
    store = KeyStore(path.name)
    path.write_text('{"keys": []}')
    monkeypatch.chdir("/")
    now[0] = 2.0
    with pytest.raises(RequestError, match="not valid"):
        store.find(bearer(key))


@pytest.mark.parametrize("text", ["", "[]", '{"keys": [{"name": "a"}]}', '{"keys": [{"name": "a", "hash": "b"}]}'])
def test_a_malformed_file(path, text):
    path.write_text(text)
    with pytest.raises(PyTritonBadParameterError, match=r"keys\.json"):
        KeyStore(path)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("", {}, "'name' of key '' is ''; use text"),
        ("alice", {"rate": 0}, "'rate' of key 'alice' is 0; use a number above 0"),
        ("alice", {"rate": float("inf")}, "'rate' of key 'alice' is inf; use a number above 0"),
        ("alice", {"rate": float("nan")}, "'rate' of key 'alice' is nan; use a number above 0"),
        ("alice", {"max_requests": -1}, "'max_requests' of key 'alice' is -1; use a number above 0"),
        ("alice", {"models": "Double"}, "'models' of key 'alice' is 'Double'; use a list of names"),
    ],
)
def test_settings_of_a_key_are_checked(path, name, settings, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        create_key(path, name, **settings)
    assert not path.exists()


def test_a_rate_recovers(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("pytriton.gateway.access.time.monotonic", lambda: now[0])
    key = ApiKey("a", "0" * 64, rate=2)
    for _ in range(2):
        key.take()
    with pytest.raises(RequestError) as refused:
        key.take()
    assert refused.value.headers["retry-after"] == "1"
    now[0] = 0.5
    key.take()
