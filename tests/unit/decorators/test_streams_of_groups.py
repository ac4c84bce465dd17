"""Generators under the decorators that make groups."""

from __future__ import annotations

import pytest
from generators import INPUTS, Requested, both_kinds, column, requests_with_k, responses, steps_of

from pytriton.decorators import (
    ConstantPadder,
    batch,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
)
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonValidationError,
)
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.types import Response

# Sockets are those of earlier tests in this process.
pytestmark = pytest.mark.filterwarnings("error", "ignore:unclosed <socket:ResourceWarning")


@both_kinds
def test_groups_of_keys_run_side_by_side_and_fail_alone(kind):
    @group_by_keys
    @batch
    @kind
    def infer(x, k=None):
        yield [x]
        if k is not None:
            raise ZeroDivisionError
        yield [x + 10]

    requests = [Requested(0), Requested(1, k=column(1)), Requested(2), Requested(3, k=column(1))]
    assert responses(infer(requests), 4) == [[0, 10], [1, ZeroDivisionError], [2, 12], [3, ZeroDivisionError]]


@both_kinds
def test_a_step_of_a_group_of_keys_has_an_item_for_each_of_its_requests(kind):
    @group_by_keys
    @kind
    def infer(requests):
        yield requests
        yield [None, *requests[1:]] if "k" not in requests[0] else requests[1:]

    requests = [Requested(0), Requested(1, k=column(1)), Requested(2)]
    steps = steps_of(infer(requests))
    errors = [item for step in steps for item in step if isinstance(item, Exception)]

    assert [error.args[0] for error in errors] == [
        "@group_by_keys made a call with 1 requests, which yielded a list of 0: yield a list with one response per "
        "request, or put @batch below"
    ]
    assert [[step[place] for step in steps if step[place]] for place in (0, 2)] == [[requests[0]], [requests[2]] * 2]


@both_kinds
def test_requests_with_the_same_inputs_pass_group_by_keys_unchanged(kind):
    infer = group_by_keys(batch(kind(lambda x: (yield [x]))))

    assert type(steps_of(infer([Requested(0), Requested(1)]))[0]) is StackedOutputs


@both_kinds
def test_groups_of_values_run_side_by_side_for_their_requests(kind):
    @batch
    @group_by_values("k")
    @first_value("k")
    @kind
    def infer(x, k):
        for number in range(int(k)):
            yield {"y": x * 10 + number}
        if k == 3:
            raise ZeroDivisionError

    requests = [*requests_with_k(1, 2, 1, 3), Requested(4, k=column(2))]
    got = responses(infer(requests), 5)

    assert got == [[0], [10, 11], [20], [30, 31, 32, ZeroDivisionError], [40, 41]]


@both_kinds
def test_rows_of_one_group_of_values_pass_unchanged(kind):
    infer = batch(group_by_values("k")(kind(lambda x, k: (yield [x]))))

    assert type(steps_of(infer(requests_with_k(1, 1)))[0]) is StackedOutputs


@both_kinds
def test_a_request_of_several_rows_may_be_in_one_group_of_values(kind):
    infer = batch(group_by_values("k")(kind(lambda x, k: (yield {"y": x}))))
    requests = [{"x": column(1, 2), "k": column(5, 5)}, {"x": column(3), "k": column(6)}]

    assert responses(infer(requests), 2) == [[[[1], [2]]], [3]]


@both_kinds
def test_a_request_whose_rows_are_in_several_groups_of_values_fails_alone(kind):
    @batch
    @group_by_values("k")
    @kind
    def infer(x, k):
        yield [x]
        yield [x * 2]

    spread = {"x": column(1, 2), "k": column(5, 6)}
    steps = steps_of(infer([{"x": column(3), "k": column(5)}, spread, {"x": column(4), "k": column(7)}]))

    assert str(steps[0][1]) == (
        "a request has rows with different values of 'k', whose responses cannot be joined: send one row per request, "
        "or rows that have the same values"
    )
    assert [step[1] for step in steps[1:]] == [None] * (len(steps) - 1)
    assert [[step[place][0].item() for step in steps if isinstance(step[place], list)] for place in (0, 2)] == [
        [3, 6],
        [4, 8],
    ]
    with pytest.raises(PyTritonValidationError, match="send one row per request"):
        steps_of(infer([spread]))
    got = responses(
        sample(group_by_values("k")(kind(lambda x, k: (yield [x]))))([spread, spread | {"k": column(1, 1)}]), 2
    )
    assert got == [[PyTritonValidationError], [[[1], [2]]]]


@both_kinds
def test_nested_groups_of_values_find_their_requests(kind):
    @batch
    @group_by_values("k")
    @group_by_values("x")
    @kind
    def infer(x, k):
        assert len(set(x[:, 0])) == len(set(k[:, 0])) == 1
        yield [x * 10 + k]

    requests = [{"x": column(x), "k": column(k)} for x, k in [(1, 5), (2, 5), (1, 6), (2, 5)]]
    assert responses(infer(requests), 4) == [[15], [25], [16], [25]]


@both_kinds
@pytest.mark.parametrize("above", [True, False])
def test_padding_is_removed_from_every_step(model, kind, above):
    model(INPUTS, preferred=[4, 8], max_batch_size=8)
    sizes = []

    @kind
    def infer(x, k):
        for number in range(2):
            sizes.append(len(x))
            yield {"y": x + number}

    decorators = [pad_batch, group_by_values("k")] if above else [group_by_values("k"), pad_batch]
    decorated = batch(decorators[0](decorators[1](infer)))
    got = responses(decorated([*requests_with_k(1, 2, 1), {"x": column(7, 8), "k": column(2, 2)}]), 4)

    assert got == [[0, 1], [1, 2], [2, 3], [[[7], [8]], [[8], [9]]]]
    assert sorted(set(sizes)) == ([4] if above is False else [2, 6])


@both_kinds
def test_padding_is_removed_from_a_final_response(model, kind):
    model(INPUTS, preferred=[4], max_batch_size=8)
    infer = batch(pad_batch(kind(lambda x: (yield Response({"y": x}, final=True)))))

    ((item,),) = steps_of(infer([Requested(3)]))

    assert (item["y"].tolist(), item.final) == ([[3]], True)


@both_kinds
def test_a_padding_function_is_refused_around_a_generator(kind):
    def generate(x, k):
        yield [x]

    class Model:
        __call__ = kind(generate)

    with pytest.raises(PyTritonBadParameterError, match=r"group_by_values\('k'\) has a pad_fn, .*: omit pad_fn"):
        group_by_values("k", pad_fn=ConstantPadder())(kind(generate))
    hidden = batch(group_by_values("k", pad_fn=ConstantPadder())(lambda x, k: kind(generate)(x, k)))
    with pytest.raises(PyTritonBadParameterError, match="omit pad_fn"):
        steps_of(hidden(requests_with_k(1, 2)))


@both_kinds
def test_groups_of_values_need_to_know_their_requests(kind):
    grouped = group_by_values("k")(kind(lambda x, k: (yield [x])))

    with pytest.raises(PyTritonValidationError, match="made 2 generators, but does not know which requests they s"):
        grouped(x=column(1, 2), k=column(1, 2))


def test_a_decorator_between_batch_and_group_by_values_is_refused():
    def doubled(function):
        def wrapper(**inputs):
            for outputs in function(**inputs):
                yield {name: array * 2 for name, array in outputs.items()}

        return wrapper

    def generate(x, k):
        yield {"y": x}

    right = batch(group_by_values("k")(doubled(generate)))
    assert responses(right(requests_with_k(1, 2)), 2) == [[0], [2]]
    wrong = batch(doubled(group_by_values("k")(generate)))
    with pytest.raises(PyTritonValidationError, match="put your own decorator below @group_by_values"):
        steps_of(wrong(requests_with_k(1, 2)))
