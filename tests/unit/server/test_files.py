from __future__ import annotations

import sys

import pytest

import pytriton
from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.server.files import SERVER_PATH_VARIABLE, find_server, own_files


def program(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o755)
    return path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with a server."""
    root = tmp_path / "package" / "tritonserver"
    program(root / "bin" / "tritonserver")
    program(root / "bin" / "pytriton-launch")
    (root / "backends" / "pytriton").mkdir(parents=True)
    monkeypatch.setattr(pytriton, "__path__", [str(tmp_path / "package")])
    return tmp_path / "package"


@pytest.fixture
def own(tmp_path):
    """A server of the user's own."""
    root = tmp_path / "opt"
    program(root / "bin" / "tritonserver")
    (root / "backends" / "onnxruntime").mkdir(parents=True)
    return root


def test_the_bundled_server_is_found(package):
    files = find_server()

    assert files.root == package / "tritonserver"
    assert files.executable == files.root / "bin" / "tritonserver"
    assert files.launcher == files.root / "bin" / "pytriton-launch"
    assert files.backend == files.root / "backends" / "pytriton"
    assert files.libraries == files.root / "lib"
    assert files.caches == files.root / "caches"


def test_the_first_folder_of_the_package_with_the_files_is_used(package, tmp_path):
    assert own_files([str(tmp_path / "source"), str(package)]).root == package / "tritonserver"


def test_a_custom_server_is_used_with_the_packages_backend_and_launcher(package, own):
    files = find_server(own)

    assert files.root == own
    assert files.executable == own / "bin" / "tritonserver"
    assert files.launcher == package / "tritonserver" / "bin" / "pytriton-launch"
    assert files.backend == package / "tritonserver" / "backends" / "pytriton"


def test_the_environment_names_a_server(package, own, monkeypatch):
    monkeypatch.setenv(SERVER_PATH_VARIABLE, str(own))
    assert find_server().root == own

    monkeypatch.setenv(SERVER_PATH_VARIABLE, "")
    assert find_server().root == package / "tritonserver"


def test_the_parameter_overrides_the_environment(package, own, monkeypatch, tmp_path):
    monkeypatch.setenv(SERVER_PATH_VARIABLE, str(tmp_path))

    assert find_server(str(own)).root == own


def test_relative_paths_and_home_folders_are_expanded(package, own, monkeypatch):
    monkeypatch.chdir(own.parent)
    monkeypatch.setenv("HOME", str(own.parent))

    assert find_server("opt").root == find_server("~/opt").root == own


def test_a_custom_server_needs_no_bundled_one(package, own):
    (package / "tritonserver" / "bin" / "tritonserver").unlink()

    assert find_server(own).root == own
    with pytest.raises(PyTritonRuntimeError, match=r"The Triton server is missing from .*pip install \."):
        find_server()


def test_a_package_without_its_backend_is_an_error(package):
    (package / "tritonserver" / "backends" / "pytriton").rmdir()

    with pytest.raises(PyTritonRuntimeError, match=f"The proxy backend is missing from {package}"):
        find_server()


def test_the_error_in_a_source_folder_names_the_installed_package(package, tmp_path, monkeypatch):
    package.rename(tmp_path / "pytriton")
    (tmp_path / "source" / "pytriton").mkdir(parents=True)
    (tmp_path / "source" / "pyproject.toml").touch()
    monkeypatch.setattr(pytriton, "__path__", [str(tmp_path / "source" / "pytriton")])
    monkeypatch.setattr(sys, "path", [str(tmp_path / "source"), str(tmp_path)])

    with pytest.raises(PyTritonRuntimeError, match=f"is in {tmp_path}/pytriton: save the program in another folder"):
        find_server()

    monkeypatch.setattr(sys, "path", [str(tmp_path / "source")])
    with pytest.raises(PyTritonRuntimeError, match=r"pip install \."):
        find_server()


@pytest.mark.parametrize("by", ["parameter", "environment"])
def test_the_error_for_a_folder_without_a_server_names_its_setting(package, tmp_path, monkeypatch, by):
    if by == "environment":
        monkeypatch.setenv(SERVER_PATH_VARIABLE, str(tmp_path))
    where = "server_path" if by == "parameter" else SERVER_PATH_VARIABLE

    with pytest.raises(PyTritonBadParameterError, match=f"no Triton server in {tmp_path} .*{where}"):
        find_server(tmp_path if by == "parameter" else None)


def test_a_server_that_cannot_be_executed_is_refused(package, own):
    (own / "bin" / "tritonserver").chmod(0o644)

    with pytest.raises(PyTritonBadParameterError, match="is not a program"):
        find_server(own)


def test_the_bundled_backends_are_used_in_place(package, tmp_path):
    assert find_server().backends(tmp_path / "links") == package / "tritonserver" / "backends"
    assert not (tmp_path / "links").exists()


def test_backends_of_a_custom_server_are_available_beside_ours(package, own, tmp_path):
    (own / "backends" / "pytriton").mkdir()  # of another version: not ours
    (own / "backends" / "python").mkdir()  # NVIDIA's
    files = find_server(own)

    for _ in range(2):  # the folder may be there already
        folder = files.backends(tmp_path / "links")
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.name: path.resolve() for path in folder.iterdir()} == {
            "onnxruntime": own / "backends" / "onnxruntime",
            "pytriton": files.backend,
            "python": files.backend.parent / "python",
        }


def test_a_server_without_backends_gets_ours(package, tmp_path):
    program(tmp_path / "bare" / "bin" / "tritonserver")

    folder = find_server(tmp_path / "bare").backends(tmp_path / "links")
    assert sorted(path.name for path in folder.iterdir()) == ["python", "pytriton"]


def test_additional_backends_are_available_beside_those_of_the_server(package, own, tmp_path):
    for name in ("onnxruntime", "engine", "python"):
        (tmp_path / "more" / name).mkdir(parents=True)
    files = find_server(own)

    for _ in range(2):
        folder = files.backends(tmp_path / "links", tmp_path / "more")
        assert {path.name: path.resolve() for path in folder.iterdir()} == {
            "onnxruntime": tmp_path / "more" / "onnxruntime",
            "engine": tmp_path / "more" / "engine",
            "pytriton": files.backend,
            "python": files.backend.parent / "python",
        }
    assert "engine" not in {path.name for path in files.backends(tmp_path / "links").iterdir()}


def test_additional_backends_are_found_in_a_folder(package, tmp_path):
    with pytest.raises(PyTritonBadParameterError, match=r"backend_directory is '.*/missing', which is not a folder"):
        find_server().backends(tmp_path / "links", tmp_path / "missing")
