from __future__ import annotations

import asyncio
import functools

import pytest
import wrapt

from pytriton.decorators import batch, group_by_keys, sample, triton_context
from pytriton.proxy.worker.execution_mode import MAX_IN_FLIGHT, MAX_THREADS, Kind, in_flight_of, joins_requests, kind_of


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
    pytest.param(function, Kind.FUNCTION, id="function"),
    pytest.param(coroutine, Kind.COROUTINE, id="coroutine"),
    pytest.param(generator, Kind.GENERATOR, id="generator"),
    pytest.param(async_generator, Kind.ASYNC_GENERATOR, id="async generator"),
]


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_functions_are_told_apart(infer_func, kind):
    assert kind_of(infer_func) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_methods_are_what_their_functions_are(infer_func, kind):
    assert kind_of(getattr(Methods(), infer_func.__name__)) is kind
    assert kind_of(functools.partial(getattr(Methods, infer_func.__name__), Methods())) is kind


def test_methods_of_classes_partial_methods_and_static_methods_are_told_apart():
    assert kind_of(Methods().bound) is Kind.COROUTINE
    assert kind_of(Methods.of_class) is Kind.COROUTINE
    assert kind_of(Methods.of_nothing) is Kind.GENERATOR


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_partials_are_what_they_are_of(infer_func, kind):
    assert kind_of(functools.partial(infer_func)) is kind
    assert kind_of(functools.partial(functools.partial(infer_func), requests=[])) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_callable_objects_are_what_their_call_is(infer_func, kind):
    called = type("Called", (), {"__call__": lambda self, requests: requests})
    called.__call__ = getattr(Methods, infer_func.__name__)

    assert kind_of(called()) is kind
    assert kind_of(functools.partial(called())) is kind


@pytest.mark.parametrize(("infer_func", "kind"), KINDS)
def test_what_wrapt_decorates_stays_what_it_is(infer_func, kind):
    assert kind_of(passed_through(infer_func)) is kind
    assert kind_of(passed_through(passed_through(infer_func))) is kind
    assert kind_of(passed_through(getattr(Methods(), infer_func.__name__))) is kind


def test_a_wrapper_by_functools_is_what_it_is_itself():
    @functools.wraps(coroutine)
    def plain(requests):
        return coroutine(requests)

    @functools.wraps(function)
    async def waiting(requests):
        return await asyncio.to_thread(function, requests)

    assert kind_of(plain) is Kind.FUNCTION, "what it returns is looked at when it is called"
    assert kind_of(waiting) is Kind.COROUTINE


@pytest.mark.parametrize(
    "infer_func",
    [lambda requests: coroutine(requests), functools.lru_cache(function), list],
    ids=["lambda", "cache", "class"],
)
def test_all_else_is_a_function(infer_func):
    assert kind_of(infer_func) is Kind.FUNCTION


def test_kinds_say_where_they_run_and_whether_they_yield():
    assert [kind.is_async for kind in Kind] == [False, True, False, True]
    assert [kind.yields for kind in Kind] == [False, False, True, True]


@pytest.mark.parametrize("wanted", [None, 7])
def test_a_function_takes_one_batch_at_a_time(wanted):
    assert in_flight_of(Kind.FUNCTION, decoupled=False, wanted=wanted) == 0
    assert in_flight_of(Kind.FUNCTION, decoupled=True, wanted=wanted) == 1


@pytest.mark.parametrize("kind", [Kind.COROUTINE, Kind.GENERATOR, Kind.ASYNC_GENERATOR])
@pytest.mark.parametrize("decoupled", [False, True])
def test_others_take_as_many_as_their_model_says(kind, decoupled):
    assert in_flight_of(kind, decoupled=decoupled, wanted=7) == 7
    assert in_flight_of(kind, decoupled=decoupled, wanted=None) == (MAX_IN_FLIGHT if kind.is_async else MAX_THREADS)


class Decorated:
    @batch
    def infer(self, x):
        return [x]


@pytest.mark.parametrize("decorated", [batch(function), sample(function), Decorated().infer])
def test_batch_and_sample_are_given_requests_that_are_not_made_yet(decorated):
    assert joins_requests(decorated)


@functools.wraps(batch(function))
def decorated_by_a_user(requests):
    return requests


@pytest.mark.parametrize(
    "other", [function, group_by_keys(batch(function)), triton_context(batch(function)), decorated_by_a_user]
)
def test_all_other_callables_are_given_a_list_of_requests(other):
    assert not joins_requests(other)
