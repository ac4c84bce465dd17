"""Fixtures: a server with a repository of Python models."""

from __future__ import annotations

import pytest
from pb_models import ASKING, write
from serving import running_triton


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return tmp_path_factory.mktemp("repository")


@pytest.fixture(scope="module")
def triton(repository):
    """A server whose repository grows: each test writes a model and loads it."""
    with running_triton(model_repository=repository) as triton:
        triton.run()
        yield triton


@pytest.fixture
def load(triton, repository, name):
    """Writes a model that can call others, and loads it."""

    def load(body, **more):
        return write(triton, repository, name, ASKING, body, **more)

    return load
