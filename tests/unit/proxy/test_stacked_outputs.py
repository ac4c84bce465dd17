"""Stacked outputs behave like the list of dictionaries that they stand for."""

from __future__ import annotations

import copy
import json
import operator
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wiring import floats, listed, result_of

from pytriton.proxy.tensors.stacked_outputs import StackedOutputs

ROWS = st.lists(st.integers(1, 3), min_size=1, max_size=5)


def numbers(rows):
    return np.arange(sum(rows), dtype=np.float32)[:, None]


def plain(rows):
    """What `StackedOutputs` stand for."""
    ends = np.cumsum(rows)
    return [{"y": part} for part in np.split(numbers(rows), ends[:-1])]


def shown(outputs):
    return [{name: array.tolist() for name, array in each.items()} for each in outputs]


NEW = {"y": np.float32([[7]])}
OPERATIONS = {
    "edit an array": lambda outputs, n: outputs[n]["y"].__setitem__(0, 9),
    "edit a response": lambda outputs, n: outputs[n].__setitem__("y", outputs[n]["y"] + 1),
    "add an output": lambda outputs, n: outputs[n].__setitem__("z", outputs[n]["y"] * 2),
    "edit in a loop": lambda outputs, n: [each.update(y=each["y"] - 1) for each in outputs],
    "replace": lambda outputs, n: outputs.__setitem__(n, dict(NEW)),
    "replace a part": lambda outputs, n: outputs.__setitem__(slice(n, None), [dict(NEW)]),
    "append": lambda outputs, n: outputs.append(dict(NEW)),
    "extend": lambda outputs, n: outputs.extend([dict(NEW)] * n),
    "insert": lambda outputs, n: outputs.insert(n, dict(NEW)),
    "pop": lambda outputs, n: outputs.pop(n),
    "delete": lambda outputs, n: outputs.__delitem__(n),
    "clear": lambda outputs, n: outputs.clear(),
    "reverse": lambda outputs, n: outputs.reverse(),
    "sort": lambda outputs, n: outputs.sort(key=lambda each: -each["y"].sum()),
    "add": lambda outputs, n: outputs.__iadd__([dict(NEW)]),
    "multiply": lambda outputs, n: outputs.__imul__(2),
    "look": lambda outputs, n: (len(outputs), list(outputs), bool(outputs), outputs[:n]),
}
VIEWS = {
    "itself": lambda outputs: outputs,
    "a list": list,
    "a copy": lambda outputs: outputs.copy(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "a slice": lambda outputs: outputs[:],
    "reversed": lambda outputs: list(reversed(outputs)),
    "unpacked": lambda outputs: [*outputs],
    "added": lambda outputs: operator.add(outputs, [dict(NEW)]),
    "added to": lambda outputs: operator.add([dict(NEW)], outputs),
    "extending": lambda outputs: [dict(NEW), *outputs],
    "pickled": lambda outputs: pickle.loads(pickle.dumps(outputs)),
}


@given(
    ROWS, st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 4))), st.sampled_from(sorted(VIEWS))
)
def test_they_behave_like_a_list_under_all_operations(rows, operations, view):
    expected, outputs = plain(rows), StackedOutputs({"y": numbers(rows)}, rows)
    for name, number in operations:
        place = number % len(expected) if expected else 0
        if not expected and name not in ("append", "extend", "insert", "clear", "look", "add", "edit in a loop"):
            continue
        OPERATIONS[name](expected, place)
        OPERATIONS[name](outputs, place)
    assert isinstance(outputs, list)
    assert len(outputs) == len(expected)
    assert shown(VIEWS[view](outputs)) == shown(VIEWS[view](expected))
    assert repr(outputs) == repr(expected)


def test_a_list_may_be_extended_by_them():
    taken = [1]
    taken += StackedOutputs({"y": numbers([1, 1])}, [1, 1])
    taken.extend(StackedOutputs({"y": numbers([1])}, [1]))
    assert len(taken) == 4
    assert json.dumps(StackedOutputs({"y": np.float32([[1]])}, [1]), default=np.ndarray.tolist) == '[{"y": [[1.0]]}]'


@pytest.mark.parametrize("form", [list, tuple])
def test_outputs_in_order_have_the_names_of_the_model(form):
    outputs = StackedOutputs(form([numbers([1, 2])] * 2), [1, 2], ["y", "z"])
    assert [list(each) for each in outputs] == [["y", "z"]] * 2
    assert [type(each) for each in StackedOutputs(form([numbers([1])]), [1])] == [list]


def test_they_stay_stacked_until_they_are_accessed(wire):
    connection = wire()
    batch = connection.batch({"x": floats(1)}, {"x": floats(1)})
    outputs = StackedOutputs({"y": floats(2), "z": floats(2)}, [1, 1])
    assert len(outputs) == 2
    result_of(connection, batch, outputs)
    assert outputs.is_whole


def test_edits_are_sent(wire):
    connection = wire()
    batch = connection.batch({"x": floats(1)}, {"x": floats(1)})
    outputs = StackedOutputs({"y": floats(2), "z": floats(2)}, [1, 1])
    for each in outputs:
        each["y"] = each["y"] + 100
    _, sent = result_of(connection, batch, outputs)
    assert listed(sent)["y"] == (floats(2) + 100)[:, None].tolist()
