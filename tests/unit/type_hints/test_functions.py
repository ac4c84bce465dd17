"""Functions with type hints, and the models that they declare."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, NamedTuple, Optional, TypedDict

import numpy as np
import pydantic
import pytest
from jaxtyping import Float32
from numpy.typing import NDArray
from typing_extensions import NotRequired, TypeAliasType

import pytriton
from pytriton.decorators import batch, first_value, sample
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonInvalidRequestError,
    PyTritonModelConfigError,
    PyTritonValidationError,
)
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.proxy.context import TritonContext
from pytriton.type_hints import declared_models, define, model

Rows = Float32[np.ndarray, "batch n"]
Vector = NDArray[np.float32]


class Named(TypedDict):
    label: str
    score: float


class Pair(NamedTuple):
    first: Vector
    second: int


@dataclasses.dataclass
class Point:
    x: float
    y: float


class Scores(pydantic.BaseModel):
    best: str
    scores: Annotated[list[float], pydantic.Field(min_length=1)]
    image: Annotated[bytes, Tensor((1,), bytes, media_type="image/png")]


def names(tensors):
    return [tensor.name for tensor in tensors]


def vector(*numbers):
    return np.array(numbers, np.float32)


def called(function, *requests, **settings):
    """What the inference callable of a function responds to requests."""
    return [dict(each) for each in define(function, **settings).infer_func(list(requests))]


def text(value):
    return np.array([value.encode()], object)


def test_a_first_dimension_named_batch_makes_batches():
    def add(a: Rows, b: Rows) -> Rows:
        assert len(a) == 2
        return a + b

    definition = define(add, max_batch_size=64)
    assert (definition.config.batching, definition.config.max_batch_size) == (True, 64)
    assert definition.inputs == [Tensor((-1,), np.float32, "a"), Tensor((-1,), np.float32, "b")]
    assert definition.outputs == [Tensor((-1,), np.float32, "output")]
    one = {"a": vector(1)[None], "b": vector(2)[None]}
    assert [each["output"].tolist() for each in called(add, one, one)] == [[[3]], [[3]]]


def test_functions_without_a_batch_dimension_get_samples():
    def repeat(word: str, times: int = 2) -> str:
        return word * times

    definition = define(repeat)
    assert definition.config.batching is False
    assert [(each.name, each.optional) for each in definition.inputs] == [("word", False), ("times", True)]
    responses = called(repeat, {"word": text("a")}, {"word": text("b"), "times": np.array([3])})
    assert [each["output"].tolist() for each in responses] == [[b"aa"], [b"bbb"]]


def test_optional_inputs_of_batches_need_no_decorator():
    def scale(x: Rows, factor: Rows | None = None) -> Rows:
        return x if factor is None else x * factor

    one = {"x": vector(1)[None]}
    responses = called(scale, one, one | {"factor": vector(5)[None]}, one)
    assert [each["output"].item() for each in responses] == [1, 5, 1]


def test_omitted_optional_inputs_are_none():
    def say(word: Optional[str]) -> str:  # noqa: UP045
        return repr(word)

    assert called(say, {})[0]["output"].item() == b"None"


@pytest.mark.parametrize("result", [Named, Pair, Point, Scores])
def test_fields_of_a_result_are_outputs(result):
    made = {
        Named: lambda: {"label": "a", "score": 1.0},
        Pair: lambda: Pair(vector(1), 2),
        Point: lambda: Point(3.0, 4.0),
        Scores: lambda: Scores(best="b", scores=[5, 6], image=b"png"),
    }

    def build() -> Any:
        return made[result]()

    build.__annotations__["return"] = result
    expected = {
        Named: {"label": [b"a"], "score": [1]},
        Pair: {"first": [1], "second": [2]},
        Point: {"x": [3], "y": [4]},
        Scores: {"best": [b"b"], "scores": [5, 6], "image": [b"png"]},
    }
    assert names(define(build).outputs) == list(expected[result])
    (response,) = called(build, {})
    assert {name: array.tolist() for name, array in response.items()} == expected[result]


def test_qualifiers_of_a_typed_dictionary_are_ignored():
    class Result(TypedDict):
        label: NotRequired[str]

    def build() -> Result:
        return {"label": "a"}

    assert names(define(build).outputs) == ["label"]


def test_types_of_a_function_are_found_under_future_annotations():
    class Local(TypedDict):
        y: Vector

    def build(x: Vector) -> Local:
        return {"y": x}

    assert names(define(build).outputs) == ["y"]


def test_type_aliases_are_resolved():
    value = TypeAliasType("value", Vector)
    result = TypeAliasType("result", Named)

    def classify(x: value) -> result: ...

    def stream(x: value) -> TypeAliasType("stream", Iterator[result]): ...

    for function in (classify, stream):
        assert names(define(function).inputs) == ["x"]
        assert names(define(function).outputs) == ["label", "score"]
    assert define(stream).config.decoupled


def test_streams_of_every_kind():
    def plain(count: int) -> Iterator[str]:
        for number in range(count):
            yield f"{number}"

    async def asynchronous(count: int) -> AsyncIterator[str]:
        for number in range(count):
            yield f"{number}"

    def iterator(count: int) -> Iterator[str]:
        return iter([f"{number}" for number in range(count)])

    async def collect(stream):
        return [each async for each in stream]

    for function in (plain, asynchronous, iterator):
        definition = define(function)
        assert definition.config.decoupled
        stream = definition.infer_func([{"count": np.array([2])}])
        steps = asyncio.run(collect(stream)) if function is asynchronous else list(stream)
        responses = [each for step in steps for each in step]
        texts = [each["output"].item() for each in responses if isinstance(each, dict)]
        assert texts == [b"0", b"1"]


def test_coroutines_stay_coroutines():
    async def double(x: Vector) -> Vector:
        return x * 2

    responses = asyncio.run(define(double).infer_func([{"x": vector(1, 2)}]))
    assert responses[0]["output"].tolist() == [2, 4]


def test_leaving_a_stream_closes_that_of_the_function():
    closed = []

    def count() -> Iterator[int]:
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    stream = define(count).infer_func([{}])
    next(stream)
    stream.close()
    assert closed == [True]


def test_methods_partials_and_objects():
    class Scaler:
        def __init__(self, factor):
            self.factor = factor

        def scale(self, x: Vector) -> Vector:
            return x * self.factor

        def __call__(self, x: Vector) -> Vector:
            return x * self.factor

    def scale(x: Vector, factor: float) -> Vector:
        return x * np.float32(factor)

    for function in (Scaler(3).scale, Scaler(3), functools.partial(scale, factor=3)):
        assert names(define(function).inputs) == ["x"]
        assert called(function, {"x": vector(1)})[0]["output"].tolist() == [3]


def test_decorated_functions_are_not_changed():
    @batch(max_batch_size=7)
    @first_value("factor")
    def scale(x: Vector, factor: Annotated[np.ndarray, Tensor((1,), np.float32)]) -> Pair:
        return Pair(x * factor, np.ones((len(x), 1), np.int64))

    class Result(TypedDict):
        y: Vector

    @sample
    def one(x: Vector) -> Result:
        return {"y": x}

    assert define(one).config.batching is False
    assert define(one).infer_func is one
    with pytest.raises(PyTritonBadParameterError, match="'second' is not a NumPy array, but its decorators"):
        define(scale)


def test_explicit_tensors_take_precedence():
    def double(x: Vector) -> Vector:
        return x * 2

    declared = [Tensor((3,), np.float64, "x")]
    definition = define(double, inputs=declared)
    assert definition.inputs == declared
    assert names(definition.outputs) == ["output"]


def test_the_context_is_not_an_input():
    def show(x: Vector, context: TritonContext) -> Vector:
        return x

    def show_too(x: Vector, triton_context: Any) -> Vector:
        return x

    for function in (show, show_too):
        assert names(define(function).inputs) == ["x"]


def test_instances_of_one_model():
    def one(x: Vector) -> Vector:
        return x

    def two(x: Vector) -> Vector:
        return x

    def other(y: Vector) -> Vector:
        return y

    assert len(define([one, two]).infer_func) == 2
    with pytest.raises(PyTritonBadParameterError, match="instances of a model have different type hints"):
        define([one, other])
    with pytest.raises(PyTritonBadParameterError, match="empty list"):
        define([])


def test_processes_have_the_type_hints_of_the_class_that_they_create():
    class Model:
        def __init__(self, factor):
            self.factor = factor

        def __call__(self, x: Rows) -> Rows:
            return x * self.factor

    def make() -> Model:
        return Model(2)

    for instance in (ProcessInstance(Model, args=[2]), ProcessInstance(make)):
        definition = define(instance)
        assert names(definition.inputs) == ["x"]
        created = definition.infer_func.factory(*definition.infer_func.args)
        assert created([{"x": vector(1)[None]}])[0]["output"].item() == 2
    with pytest.raises(PyTritonBadParameterError, match="known only in the process; pass inputs"):
        define(ProcessInstance(lambda: Model(1)))


def no_hint(x, y: str) -> str: ...
def no_result(x: str): ...
def none(x: str) -> None: ...
def a_tuple(x: str) -> tuple[str, str]: ...
def a_model(x: Scores) -> str: ...
def a_point(x: Point) -> str: ...
def a_field(x: int = pydantic.Field(10)) -> str: ...
def any_number(*x: str) -> str: ...
def keywords(**x: str) -> str: ...
def positional(x: str, /) -> str: ...
def unknown(x: Nothing) -> str: ...  # noqa: F821
def broken(x: np.nothing) -> str: ...
def unsure(x: str) -> Optional[str]: ...  # noqa: UP045
def mixed(x: Rows, k: int) -> Rows: ...
def mixed_result(x: Rows) -> str: ...
def no_stream(x: str) -> str:
    yield x


def other_name(x: Annotated[np.ndarray, Tensor((1,), np.int8, name="y")]) -> str: ...


def float_for_int(x: int = 2.5) -> str: ...
def bool_for_float(x: float | None = True) -> str: ...
def int_for_str(x: str = 3) -> str: ...


def fitting_defaults(
    a: int = 2, b: float = 1, c: str = "", d: bool = False, e: bytes = b"", f: int | None = None, g: float = np.pi
) -> str:
    return f"{a} {b} {c} {d} {e!r} {f} {g:.2f}"


def a_stream_of_anything(x: str) -> Iterator: ...
def echo(x: str) -> str: ...


class Method:
    def method(self, x: str) -> str: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_hint, r"Function 'no_hint': argument 'x' has no type hint; write .*Float32.*list\[str\]; or pass inputs="),
        (no_result, "Function 'no_result' has no type hint for its result; write .*TypedDict.*outputs="),
        (
            a_stream_of_anything,
            r"its result is Iterator, without the type of its items; write Iterator\[str\], for example",
        ),
        (Method, r"Function 'Method' is a class; pass an object of it, such as Method\(\)"),
        (none, "its result is None; a model has at least one output"),
        (a_tuple, "its result has the type hint tuple.*write a TypedDict, a dataclass or a NamedTuple"),
        (a_model, "argument 'x' is Scores, which has fields; make each of them an argument of the function instead"),
        (a_point, "argument 'x' is Point, which has fields"),
        (a_field, r"argument 'x' has the default FieldInfo\(...\), which is no value for it; write the value itself"),
        (float_for_int, "argument 'x' is int, but its default is 2.5; write one of that type, or None"),
        (bool_for_float, r"argument 'x' is .*float.*, but its default is True"),
        (int_for_str, "argument 'x' is str, but its default is 3"),
        (any_number, "argument 'x' takes any number of values; name each input"),
        (keywords, "argument 'x' takes any number of values; name each input"),
        (positional, "argument 'x' cannot be passed by name; remove the '/' after it"),
        (unknown, "Function 'unknown' has annotations that name 'Nothing', which is not defined"),
        (broken, "has annotations that cannot be read: AttributeError"),
        (unsure, r"its result has the type hint .*; every response has all outputs"),
        (mixed, "argument 'x' has 'batch' as its first dimension, but argument 'k' does not"),
        (mixed_result, "argument 'x' has 'batch' as its first dimension, but result 'output' does not"),
        (no_stream, r"yields its results, so it returns Iterator\[...\]; write that"),
        (other_name, "argument 'x' has a Tensor with the name 'y'; give both one name"),
        (Method.method, "argument 'self': bind the method of an object"),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_unsupported_type_hints_are_refused(function, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        define(function)


def test_a_batch_size_requires_the_batch_dimension():
    def double(x: Vector) -> Vector:
        return x * 2

    for settings in ({"max_batch_size": 8}, {"config": ModelConfig(max_batch_size=8)}):
        with pytest.raises(
            PyTritonModelConfigError, match=r"max_batch_size is 8, but no argument has 'batch'.*Float32"
        ):
            define(double, **settings)
    assert not define(double, config=ModelConfig(batching=False, max_batch_size=0)).config.batching


def test_wrong_values_name_the_input_or_the_output():
    def classify(label: str) -> Named:
        return {"label": label} if label == "incomplete" else {"label": 1, "score": 0.5}

    (refused,) = define(classify).infer_func([{"label": np.array([b"\xff"], object)}])
    assert isinstance(refused, PyTritonInvalidRequestError)
    assert "input 'label' is not UTF-8 text" in refused.message
    with pytest.raises(PyTritonValidationError, match="output 'label' is 1, and not str"):
        called(classify, {"label": text("a")})
    with pytest.raises(PyTritonValidationError, match="classify returned no 'score'"):
        called(classify, {"label": text("incomplete")})


def test_declared_functions_are_not_changed_and_are_found():
    @model
    def double(x: Vector) -> Vector:
        return x * 2

    @pytriton.model(name="Triple", max_batch_size=3, model_version=2, strict=True)
    def triple(x: Rows) -> Rows:
        return x * 3

    assert double(vector(1)).tolist() == [2]
    found = declared_models({"a": double, "b": triple, "again": triple, "other": 1})
    assert [(each.name, each.version, each.strict) for each in found] == [("double", 1, False), ("Triple", 2, True)]
    assert found[1].definition.config.max_batch_size == 3


@pytest.mark.parametrize("given", ["Double", 3], ids=repr)
def test_settings_are_written_by_name(given):
    with pytest.raises(
        PyTritonBadParameterError, match=rf"^@model was given {given!r}, .* as in @model\(name='Name'\)"
    ):
        model(given)


@pytest.mark.parametrize("name", ["", "a b", 3], ids=repr)
def test_an_invalid_model_name_is_refused_by_the_decorator(name):
    with pytest.raises(PyTritonBadParameterError, match=f"^Model name {name!r} cannot be the name of a folder"):
        model(name=name)(echo)


def test_defaults_of_the_type_are_accepted():
    assert all(tensor.optional for tensor in define(fitting_defaults).inputs)


def test_settings_in_a_dictionary_are_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"^config is .*; use ModelConfig\(max_batch_size=\.\.\.\)"):
        model(config={"max_batch_size": 3})(echo)


def test_a_lambda_needs_a_name():
    function = lambda x: x  # noqa: E731
    function.__annotations__ = {"x": str, "return": str}
    with pytest.raises(PyTritonBadParameterError, match=r"^A lambda has no name for its model"):
        model(function)
    assert declared_models(vars(pytriton)) == []
