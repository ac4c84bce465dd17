"""Workers of instances that another package opens."""

from __future__ import annotations

import pytest

from pytriton.models.opened_worker import OpenedWorker


class Instance:
    restarts = 0

    def __init__(self):
        self.is_stopped = False

    def wait_until_loaded(self):
        return lambda requests: requests

    def stop(self):
        self.is_stopped = True


@pytest.fixture
def instance():
    return Instance()


def test_an_instance_that_is_being_loaded_is_stopped_at_once(instance):
    OpenedWorker(instance, lambda infer_func: infer_func, "model").stop()
    assert instance.is_stopped


def test_an_instance_that_is_loaded_serves_until_it_is_closed(instance):
    worker = OpenedWorker(instance, lambda infer_func: infer_func, "model")
    worker.wait_until_loaded()
    worker.stop()
    assert not instance.is_stopped
