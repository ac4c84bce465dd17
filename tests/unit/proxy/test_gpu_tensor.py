"""Tensors of a GPU where there is none: `tests/native/test_gpu.py` has a stand-in, `tests/gpu` needs a real one."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from pytriton.proxy.cuda import driver
from pytriton.proxy.cuda.driver import CudaError
from pytriton.proxy.tensors.gpu_tensor import GpuTensor, is_on_gpu
from pytriton.proxy.tensors.layout import Layout
from pytriton.proxy.transport.arena import Arena


@pytest.fixture(autouse=True)
def _no_driver(monkeypatch):
    monkeypatch.setattr(driver, "_LIBRARY", "libcuda.so.of-no-machine")
    for cached in (driver._driver, driver._library, driver._primary_context, driver.id_of, driver.device_of):
        cached.cache_clear()
    yield
    driver._library.cache_clear()
    driver._driver.cache_clear()


@pytest.fixture
def tensor():
    return GpuTensor(1 << 40, 0, (2, 3), np.dtype(np.float32))


def test_a_process_without_a_driver_uses_no_gpu():
    assert driver.used_device() is None
    assert driver.visible_gpus() == []


def test_looking_for_a_gpu_in_use_leaves_no_garbage():
    driver.used_device()
    gc.collect()
    driver.used_device()
    assert gc.collect() == 0


@pytest.mark.parametrize("read", [GpuTensor.numpy, np.asarray, lambda tensor: driver.Memory(1, tensor.device)])
def test_without_a_driver_gpu_tensors_cannot_be_read(tensor, read):
    with pytest.raises(CudaError, match="there is no driver for GPUs"):
        read(tensor)


@pytest.mark.parametrize("count", [1, 2])
def test_an_unwritable_message_takes_no_memory(tensor, count):
    arena = Arena(1 << 20)
    layout = Layout()
    layout.add([tensor] * count, (2 * count, 3), 11)
    with pytest.raises(CudaError):
        layout.write(b"head", arena)
    assert arena.in_use() == 0


def test_tensors_that_cannot_stay_on_the_gpu_go_through_memory(tensor, caplog):
    arena = Arena(1 << 20)
    for _ in range(2):
        assert Layout(arena.devices).add_on_device([tensor], tensor.shape) is None
    (warning,) = caplog.messages
    assert warning.startswith("Tensors of a GPU are copied to memory: there is no driver for GPUs")


def test_without_devices_nothing_stays_on_a_gpu(tensor):
    assert Layout().add_on_device([tensor], tensor.shape) is None


def test_arrays_and_numbers_are_not_on_a_gpu():
    assert not any(is_on_gpu(value) for value in (np.zeros(2), np.float32(1), 1.5, "text", None, [1]))
