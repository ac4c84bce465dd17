from __future__ import annotations

import pathlib

import pytest

from pytriton.client import PyTritonClientValueError, TLSConfig


@pytest.mark.parametrize("field", ["root_certificates", "certificate_chain", "private_key"])
@pytest.mark.parametrize("kind", [str, pathlib.Path])
def test_a_missing_file(tmp_path, field, kind):
    path = tmp_path / "none.pem"
    with pytest.raises(PyTritonClientValueError, match=rf"TLSConfig\.{field} is '{path}', which is not a file"):
        TLSConfig(**{field: kind(path)})
    path.touch()
    others = {"certificate_chain": path} if field == "private_key" else {}
    assert getattr(TLSConfig(**{field: kind(path)}, **others), field) == kind(path)


def test_a_key_without_its_certificate(tmp_path):
    key = tmp_path / "key.pem"
    key.touch()
    with pytest.raises(PyTritonClientValueError, match="private_key is given without its certificate"):
        TLSConfig(private_key=key)


def test_authorities_of_the_system_are_trusted_by_default():
    assert TLSConfig() == TLSConfig(None, None, None, verify=True)
