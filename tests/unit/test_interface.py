"""A script that was written for nvidia-pytriton 0.7.0 finds every name where it was, with the same parameters.

``interface_0_7_0.txt`` lists them. There may be more parameters and fields behind those.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import importlib
import inspect
import pathlib
import re

import pytest

FACTORY = object()
REQUIRED = inspect.Parameter.empty


def interface():
    """Each line of the interface, with the module that it is about."""
    text = (pathlib.Path(__file__).parent / "interface_0_7_0.txt").read_text()
    module = ""
    for line in re.sub(r"\n +", " ", text).splitlines():
        if line.startswith("["):
            module = line.strip("[]")
        elif line and not line.startswith("#"):
            yield module, line


LINES = list(interface())


def named(module, path):
    """What a script gets that imports a name from a module."""
    found = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def parameters_of(module, declaration):
    """The parameters that stand in the parentheses of a declaration, but for ``self``."""
    names = {**vars(importlib.import_module(module)), "FACTORY": FACTORY}
    declared = eval(f"lambda {declaration.partition('(')[2].removesuffix(')')}: None", names)
    return [each for each in inspect.signature(declared).parameters.values() if each.name != "self"]


def fields_of(cls):
    """The fields of a dataclass as parameters."""
    for field in dataclasses.fields(cls):
        default = REQUIRED if field.default is dataclasses.MISSING else field.default
        default = default if field.default_factory is dataclasses.MISSING else FACTORY
        yield inspect.Parameter(field.name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)


def check_parameters(given, wanted):
    """All parameters exist in the same order; additional ones are optional."""
    names = [each.name for each in wanted]
    required = {each.name for each in wanted if each.default is REQUIRED}
    given = [each.replace(default=REQUIRED) if each.name in required else each for each in given]
    positional = [each.name for each in wanted if each.kind is each.POSITIONAL_OR_KEYWORD]

    assert [plain(each) for each in given if each.name in names] == [plain(each) for each in wanted]
    assert [each.name for each in given if each.kind is each.POSITIONAL_OR_KEYWORD][: len(positional)] == positional
    assert [each.name for each in given if each.name not in names and each.default is REQUIRED] == []


def plain(parameter):
    """A parameter but for its annotation; its default's type tells 0 from False."""
    return parameter.name, parameter.kind, type(parameter.default), parameter.default


def check_constant(module, declaration):
    name, _, value = declaration.partition(" = ")

    assert named(module, name) == ast.literal_eval(value)


def check_function(module, declaration):
    given = inspect.signature(named(module, declaration.partition("(")[0])).parameters.values()

    check_parameters([each for each in given if each.name != "self"], parameters_of(module, declaration))


def check_fields(module, declaration):
    check_parameters(list(fields_of(named(module, declaration.partition("(")[0]))), parameters_of(module, declaration))


def check_decorator(module, name):
    assert callable(named(module, name)(lambda **inputs: inputs))


def check_class(module, declaration):
    name, _, base_name = declaration.removesuffix(")").partition("(")
    cls = named(module, name)

    assert inspect.isclass(cls)
    if base_name:
        base = getattr(builtins, base_name, None) or named(cls.__module__, base_name)
        if not issubclass(base, Exception):
            assert issubclass(cls, base)
            return
        assert cls.__bases__[0] is base
        assert all(vars(builtins).get(other.__name__) is other for other in cls.__bases__[1:]), "no others of our own"


def check_property(module, path):
    assert isinstance(named(module, path), property)


def check_enum(module, declaration):
    name, _, members = declaration.partition(": ")

    assert {member.name for member in named(module, name)} == set(members.split(", "))


CHECKS = {
    "constant": check_constant,
    "function": check_function,
    "fields": check_fields,
    "decorator": check_decorator,
    "class": check_class,
    "property": check_property,
    "enum": check_enum,
}


@pytest.mark.parametrize(
    ("module", "line"), LINES, ids=[f"{module}: {re.split('[(:=]', line)[0].strip()}" for module, line in LINES]
)
def test_interface(module, line):
    kind, _, declaration = line.partition(" ")

    CHECKS[kind](module, declaration)


def test_the_whole_interface_is_checked():
    assert {module for module, _ in LINES} == {
        "pytriton.client",
        "pytriton.client.auth",
        "pytriton.client.exceptions",
        "pytriton.client.utils",
        "pytriton.constants",
        "pytriton.decorators",
        "pytriton.exceptions",
        "pytriton.model_config",
        "pytriton.model_config.common",
        "pytriton.proxy.types",
        "pytriton.triton",
        "pytriton.utils.workspace",
    }
    assert len(LINES) > 140
