"""The examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import numpy as np
import pytest

import pytriton
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

MODULES = sorted(module.name for module in pkgutil.walk_packages(pytriton.__path__, "pytriton."))
NAMES = {"np": np, "Tensor": Tensor, "ModelConfig": ModelConfig, "Triton": Triton, "batch": batch}


def examples_of(module):
    found = doctest.DocTestFinder(exclude_empty=True).find(importlib.import_module(module), extraglobs=NAMES)
    return [each for each in found if each.examples]


@pytest.mark.parametrize("module", MODULES)
def test_examples_of(module):
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in examples_of(module):
        runner.run(example)
    assert runner.summarize(verbose=False).failed == 0


def test_docstrings_have_examples():
    assert sum(len(examples_of(module)) for module in MODULES) > 15
