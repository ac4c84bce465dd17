"""Warm-up requests, as the callable sees them."""

from __future__ import annotations

import struct
import sys
import threading

import cloudpickle
import numpy as np
import pytest
from serving import (
    FLOATS_OUT,
    LATER,
    Background,
    bind_floats,
    counted_statistics_of,
    free_config,
    send_floats,
)
from warmups import WARM, once, warm

from pytriton.decorators import batch
from pytriton.model_config import Tensor
from pytriton.model_config.common import WarmupInput
from pytriton.process import ProcessInstance
from pytriton.triton import RemoteTriton, Triton

cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Seen:
    """An inference callable that keeps what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, requests):
        self.calls.append([dict(request) for request in requests])
        return [[request["x"]] for request in requests]

    @property
    def sizes(self):
        """How many requests each call had."""
        return [len(call) for call in self.calls]

    def arrays(self, name="x"):
        """The arrays of all requests of all calls."""
        return [request[name] for call in self.calls for request in call]


@pytest.fixture
def seen():
    return Seen()


def bind_any(triton, name, infer, dtype, config, shape=(2,)):
    tensors = {each: [Tensor(name=each, shape=shape, dtype=dtype)] for each in "xy"}
    triton.bind(name, infer, tensors["x"], tensors["y"], config=config)


DTYPES = [np.float32, np.float16, np.int8, np.int64, np.uint16, np.bool_, bytes]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("source", ["zero_data", "random_data"])
def test_the_callable_sees_warm_up_requests_before_bind_returns(triton, name, seen, source, dtype):
    data = WarmupInput(dtype, (2,), **{source: True})
    bind_any(triton, name, seen, dtype, warm(once(data, batch_size=3, count=2), max_batch_size=4))

    assert seen.sizes == [3, 3]
    arrays = seen.arrays()
    assert {array.shape for array in arrays} == {(1, 2)}
    assert {array.dtype for array in arrays} == {np.dtype(object if dtype is bytes else dtype)}
    if dtype is bytes:
        assert all(array.tolist() == [[b"", b""]] for array in arrays)
    elif source == "zero_data":
        assert not any(array.any() for array in arrays)


@pytest.mark.parametrize("source", ["zero_data", "random_data"])
def test_a_model_without_batching_is_warmed_up(triton, name, seen, source):
    bind_any(triton, name, seen, np.int32, warm(once(WarmupInput(np.int32, (2,), **{source: True})), batching=False))

    assert seen.sizes == [1]
    assert [(array.shape, array.dtype) for array in seen.arrays()] == [((2,), np.int32)]


def test_random_data_is_random(triton, name, seen):
    data = WarmupInput(np.uint8, (4096,), random_data=True)
    bind_any(triton, name, seen, np.uint8, warm(once(data)), shape=(4096,))

    (array,) = seen.arrays()
    assert len(np.unique(array)) > 200


@pytest.mark.parametrize("batching", [True, False])
def test_numbers_are_read_from_a_file(triton, name, seen, tmp_path, batching):
    values = np.array([[1.5, -2.5, 3.5], [0, np.inf, 1e-40]], np.float32)
    file = tmp_path / "values"
    values.tofile(file)
    data = WarmupInput(np.float32, values.shape, input_data_file=str(file))

    bind_any(triton, name, seen, np.float32, warm(once(data, count=2), batching=batching), shape=(-1, 3))

    assert [array.tolist() for array in seen.arrays()] == [[values.tolist()] if batching else values.tolist()] * 2


TEXTS = [b"", "grüße".encode(), b"\0\xff", b"x" * 70_000]


def write_texts(path, texts):
    path.write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in texts))
    return WarmupInput(bytes, (len(texts),), input_data_file=str(path))


def save_rows(folder, rows):
    np.save(folder / "rows.npy", rows)
    return WarmupInput(np.float32, (2,), input_data_file=str(folder / "rows.npy"))


@pytest.mark.parametrize("batching", [True, False])
def test_bytes_are_read_from_a_file(triton, name, seen, tmp_path, batching):
    data = write_texts(tmp_path / "texts", TEXTS)

    bind_any(triton, name, seen, bytes, warm(once(data), batching=batching), shape=(-1,))

    (array,) = seen.arrays()
    assert array.tolist() == ([TEXTS] if batching else TEXTS)


def test_a_file_is_reread_when_the_model_is_rebound(triton, name, seen, tmp_path):
    for texts in (["a", "b"], ["c", "d"]):
        data = write_texts(tmp_path / "texts", [text.encode() for text in texts])
        bind_any(triton, name, seen, bytes, warm(once(data)))

    assert [array.tolist() for array in seen.arrays()] == [[[b"a", b"b"]], [[b"c", b"d"]]]


def test_samples_are_sent_in_order_as_often_as_configured(triton, name, seen, tmp_path):
    (tmp_path / "fives").write_bytes(np.full(5, 5, np.float32).tobytes())
    samples = [
        once(name="zeros", batch_size=2, count=2),
        once(WarmupInput(np.float32, (5,), input_data_file=str(tmp_path / "fives")), name="fives", batch_size=4),
        once(WarmupInput(np.float32, (3,), random_data=True), name="random", count=0),
    ]
    bind_floats(triton, name, seen, config=warm(*samples, max_batch_size=4))

    assert seen.sizes == [2, 2, 4, 1], "a count of 0 is once"
    assert [call[0]["x"].shape for call in seen.calls] == [(1, 2), (1, 2), (1, 5), (1, 3)]
    assert all((request["x"] == 5).all() for request in seen.calls[2])


def test_each_input_has_its_own_data_and_optional_ones_may_be_left_out(triton, name, seen, tmp_path):
    inputs = [
        Tensor(name="x", shape=(-1,), dtype=np.float32),
        Tensor(name="text", shape=(-1,), dtype=bytes),
        Tensor(name="scale", shape=(), dtype=np.int64),
        Tensor(name="k", shape=(1,), dtype=np.float32, optional=True),
    ]
    texts = write_texts(tmp_path / "texts", [b"one", b"two"])
    scale = WarmupInput(np.int64, (), zero_data=True)
    triton.bind(name, seen, inputs, FLOATS_OUT, config=warm(once(text=texts, scale=scale)))

    ((request,),) = seen.calls
    assert {key: array.tolist() for key, array in request.items()} == {
        "x": [[0, 0]],
        "text": [[b"one", b"two"]],
        "scale": [0],
    }


def test_decorated_callables_get_the_samples_as_one_batch(triton, name):
    shapes = []

    @batch
    def infer(x):
        shapes.append(x.shape)
        return [x]

    bind_floats(triton, name, infer, config=warm(once(batch_size=8), max_batch_size=8))

    assert shapes == [(8, 2)]


def test_every_instance_is_warmed_up(triton, name):
    instances = [Seen() for _ in range(3)]
    bind_floats(triton, name, instances, config=warm(once(count=2)))

    assert [each.sizes for each in instances] == [[1, 1]] * 3


def test_models_that_were_bound_before_are_warmed_up_when_run_returns(seen, tmp_path):
    data = write_texts(tmp_path / "texts", [b"a", b"b"])
    with Triton(config=free_config(), triton_lifecycle_policy=LATER) as triton:
        bind_any(triton, "texts", seen, bytes, warm(once(data, count=3)))
        assert not seen.calls
        triton.run()
        assert seen.sizes == [1] * 3

        triton.stop()
        triton.run()
        assert seen.sizes == [1] * 6, "each server warms its models up"


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_model_of_another_process_is_warmed_up(triton, name, seen, tmp_path, scheme):
    data = write_texts(tmp_path / "texts", TEXTS)
    url, token = f"{scheme}://127.0.0.1:{getattr(triton.config, f'{scheme}_port')}", triton.get_access_token()
    with RemoteTriton(url=url, access_token=token) as remote:
        bind_any(remote, name, seen, bytes, warm(once(data)), shape=(-1,))

        assert [array.tolist() for array in seen.arrays()] == [[TEXTS]]


def test_warm_ups_count_in_the_statistics(triton, name, seen):
    bind_floats(triton, name, seen, config=warm(once(count=3)))
    assert send_floats(triton, name, [1]) == [1]

    assert seen.sizes == [1] * 4
    statistics = counted_statistics_of(triton, name, 4)
    assert (statistics["inference_count"], statistics["execution_count"]) == (4, 4)


def test_the_earlier_callable_serves_while_bind_waits_for_the_warm_up(triton, name):
    entered, gate = threading.Event(), threading.Event()

    def slow(requests):
        entered.set()
        assert gate.wait(30)
        return [[request["x"] * 3] for request in requests]

    bind_floats(triton, name, batch(lambda x: [x * 2]))
    binding = Background(lambda: bind_floats(triton, name, slow, config=WARM))
    try:
        assert entered.wait(30)
        assert send_floats(triton, name, [1]) == [2]
        assert binding.is_alive()
    finally:
        gate.set()
    assert binding.finish().error is None
    assert send_floats(triton, name, [1]) == [3]


def test_a_callable_may_call_another_model_during_its_warm_up(triton, name):
    bind_floats(triton, f"{name}_inner", batch(lambda x: [x + 7]))

    def infer(requests):
        sums = [send_floats(triton, f"{name}_inner", request["x"][0].tolist()) for request in requests]
        return [[np.array([each], np.float32)] for each in sums]

    bind_floats(triton, name, infer, config=WARM)

    assert send_floats(triton, name, [1]) == [8]


@pytest.mark.parametrize("batching", [True, False])
def test_rows_of_a_file_form_one_batch(triton, name, seen, tmp_path, batching):
    rows = save_rows(tmp_path, np.array([[1, 2], [3, 4], [5, 6]]))
    config = warm(once(rows, batch_size=4 if batching else 1, count=2), batching=batching)
    bind_floats(triton, name, seen, config=config)

    expected = [[[1, 2]], [[3, 4]], [[5, 6]], [[1, 2]]] if batching else [[1, 2]]
    assert [array.tolist() for array in seen.arrays()] == 2 * expected
    if batching:
        assert send_floats(triton, name, [9]) == [9], "requests keep their own data"


def test_omitted_inputs_are_absent(triton, name, tmp_path):
    rows = save_rows(tmp_path, np.array([[1, 2], [3, 4]], np.float32))
    seen = []

    @batch
    def infer(x, k=None):
        seen.append((x.tolist(), k))
        return [x]

    inputs = [Tensor(name=each, shape=(-1,), dtype=np.float32) for each in ("x", "k")]
    triton.bind(name, infer, inputs, FLOATS_OUT, config=warm(once(rows, batch_size=2)))

    assert seen == [([[1, 2], [3, 4]], None)]


def _coroutine(seen):
    async def infer(requests):
        seen.append([request["x"].tolist() for request in requests])
        return [{"y": request["x"]} for request in requests]

    return infer


def _generator(seen):
    def infer(requests):
        seen.append([request["x"].tolist() for request in requests])
        yield [{"y": request["x"]} for request in requests]

    return infer


@pytest.mark.parametrize("make", [_coroutine, _generator])
def test_callables_of_other_kinds(triton, name, tmp_path, make):
    rows = save_rows(tmp_path, np.array([[1, 2], [3, 4]], np.float32))
    seen = []
    warmups = (once(rows, batch_size=2), once(name="zeros"))
    bind_floats(triton, name, make(seen), config=warm(*warmups, decoupled=make is _generator))

    assert seen == [[[[1, 2]], [[3, 4]]], [[[0, 0]]]]


def test_a_process_gets_the_data_of_files(triton, name, tmp_path):
    rows = save_rows(tmp_path, np.array([[1, 2], [3, 4]], np.float32))
    log = tmp_path / "seen"

    class Writing:
        def __call__(self, requests):
            with log.open("a") as file:
                file.write(str([request["x"].tolist() for request in requests]))
            return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, ProcessInstance(Writing), config=warm(once(rows, batch_size=2)))

    assert log.read_text() == "[[[1.0, 2.0]], [[3.0, 4.0]]]"


def test_warm_ups_are_not_cached(tmp_path):
    rows = save_rows(tmp_path, np.array([[5, 5]], np.float32))
    with Triton(config=free_config(cache_config=["local,size=1048576"])) as triton:
        config = warm(once(rows), response_cache=True)
        bind_floats(triton, "cached", batch(lambda x: [x + 1]), config=config)
        triton.run()
        assert [send_floats(triton, "cached", [0, 0]) for _ in range(2)] == [[1, 1]] * 2


def test_each_version_is_warmed_up_and_requests_keep_their_own_data(triton, name, tmp_path):
    rows = save_rows(tmp_path, np.array([[1, 2], [3, 4]], np.float32))
    versions = {1: Seen(), 2: Seen()}
    for number, each in versions.items():
        bind_floats(triton, name, each, model_version=number, config=warm(once(rows, batch_size=2)))

    for number, each in versions.items():
        assert [array.tolist() for array in each.arrays()[-2:]] == [[[1, 2]], [[3, 4]]]
        for value in range(3):
            assert send_floats(triton, name, [value, 7], version=number) == [value, 7]
