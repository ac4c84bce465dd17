from __future__ import annotations

import asyncio
import functools
import unittest.mock

import pytest
import wrapt

from pytriton.decorators import batch, fill_optionals, group_by_keys, sample, triton_context
from pytriton.proxy.tensors.batch import Batch, WholeBatch
from pytriton.proxy.wire.registration import ExecutionMode
from pytriton.proxy.worker.execution_mode import (
    MAX_IN_FLIGHT,
    MAX_THREADS,
    CallableKind,
    callable_kind,
    execution_mode,
    is_deferred,
    requests_for,
)


def function(requests):
    return requests


async def coroutine(requests):
    return requests


def generator(requests):
    yield requests


async def async_generator(requests):
    yield requests


class Methods:
    def function(self, requests):
        return requests

    async def coroutine(self, requests):
        return requests

    def generator(self, requests):
        yield requests

    async def async_generator(self, requests):
        yield requests

    bound = functools.partialmethod(coroutine)

    @classmethod
    async def of_class(cls, requests):
        return requests

    @staticmethod
    def of_nothing(requests):
        yield requests


@wrapt.decorator
def passed_through(wrapped, instance, args, kwargs):
    return wrapped(*args, **kwargs)


KINDS = [
    pytest.param(function, CallableKind.FUNCTION, id="function"),
    pytest.param(coroutine, CallableKind.COROUTINE, id="coroutine"),
    pytest.param(generator, CallableKind.GENERATOR, id="generator"),
    pytest.param(async_generator, CallableKind.ASYNC_GENERATOR, id="async generator"),
]


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_the_kind_of_a_function_is_known(infer_func, kind):
    assert callable_kind(infer_func) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_a_method_has_the_kind_of_its_function(infer_func, kind):
    assert callable_kind(getattr(Methods(), infer_func.__name__)) is kind
    assert callable_kind(functools.partial(getattr(Methods, infer_func.__name__), Methods())) is kind


def test_the_kind_of_class_static_and_partial_methods_is_known():
    assert callable_kind(Methods().bound) is CallableKind.COROUTINE
    assert callable_kind(Methods.of_class) is CallableKind.COROUTINE
    assert callable_kind(Methods.of_nothing) is CallableKind.GENERATOR


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_a_partial_has_the_kind_of_its_function(infer_func, kind):
    assert callable_kind(functools.partial(infer_func)) is kind
    assert callable_kind(functools.partial(functools.partial(infer_func), requests=[])) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_a_callable_object_has_the_kind_of_its_call_method(infer_func, kind):
    called = type("Called", (), {"__call__": lambda self, requests: requests})
    called.__call__ = getattr(Methods, infer_func.__name__)

    assert callable_kind(called()) is kind
    assert callable_kind(functools.partial(called())) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_a_function_that_wrapt_decorates_keeps_its_kind(infer_func, kind):
    assert callable_kind(passed_through(infer_func)) is kind
    assert callable_kind(passed_through(passed_through(infer_func))) is kind
    assert callable_kind(passed_through(getattr(Methods(), infer_func.__name__))) is kind


def test_a_wrapper_by_functools_has_its_own_kind():
    @functools.wraps(coroutine)
    def plain(requests):
        return coroutine(requests)

    @functools.wraps(function)
    async def waiting(requests):
        return await asyncio.to_thread(function, requests)

    assert callable_kind(plain) is CallableKind.FUNCTION, "what it returns is looked at when it is called"
    assert callable_kind(waiting) is CallableKind.COROUTINE


@pytest.mark.parametrize(
    "infer_func",
    [lambda requests: coroutine(requests), functools.lru_cache(function), list],
    ids=["lambda", "cache", "class"],
)
def test_anything_else_is_a_function(infer_func):
    assert callable_kind(infer_func) is CallableKind.FUNCTION


def test_kinds_tell_where_they_run_and_whether_they_yield():
    assert [kind.is_async for kind in CallableKind] == [False, True, False, True]
    assert [kind.yields for kind in CallableKind] == [False, False, True, True]


@pytest.mark.parametrize("wanted", [None, 7])
def test_a_function_serves_one_batch_at_a_time(wanted):
    sequential = execution_mode(CallableKind.FUNCTION, decoupled=False, wanted=wanted)
    assert sequential == (ExecutionMode.SEQUENTIAL, 1)
    decoupled = execution_mode(CallableKind.FUNCTION, decoupled=True, wanted=wanted)
    assert decoupled == (ExecutionMode.CONCURRENT, 1)


@pytest.mark.parametrize("kind", [CallableKind.COROUTINE, CallableKind.GENERATOR, CallableKind.ASYNC_GENERATOR])
@pytest.mark.parametrize("decoupled", [False, True])
def test_other_callables_serve_as_many_batches_as_configured(kind, decoupled):
    default = MAX_IN_FLIGHT if kind.is_async else MAX_THREADS
    assert execution_mode(kind, decoupled=decoupled, wanted=7) == (ExecutionMode.CONCURRENT, 7)
    assert execution_mode(kind, decoupled=decoupled, wanted=None) == (ExecutionMode.CONCURRENT, default)


class Decorated:
    @batch
    def infer(self, x):
        return [x]


@pytest.mark.parametrize(
    "decorated",
    [
        batch(function),
        sample(function),
        Decorated().infer,
        group_by_keys(batch(function)),
        triton_context(fill_optionals()(group_by_keys(sample(function)))),
        group_by_keys(Decorated().infer),
    ],
)
def test_batch_sample_and_the_decorators_above_them_get_lazy_requests(decorated):
    assert requests_for(decorated) is WholeBatch


@functools.wraps(batch(function))
def decorated_by_a_user(requests):
    return requests


@pytest.mark.parametrize(
    "other",
    [
        function,
        group_by_keys(function),
        triton_context(function),
        decorated_by_a_user,
        group_by_keys(decorated_by_a_user),
    ],
)
def test_all_other_callables_get_a_list_of_requests(other):
    assert requests_for(other) is Batch.requests


def test_attributes_of_a_callable_have_no_effect():
    class Model:
        deferred = True

    assert not is_deferred(Model())
    assert not is_deferred(unittest.mock.Mock())
