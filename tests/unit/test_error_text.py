"""Texts of exceptions, whatever their own methods do."""

from __future__ import annotations

import pytest

from pytriton.proxy.tensors.failure import failure_of
from pytriton.utils.error_text import name_of, summary_of, text_of, traceback_of


class LooksUpError(Exception):
    """Looks all its attributes up in a dictionary, as errors of some clients of web services do."""

    def __getattr__(self, name):
        return {"code": 404}[name]


class ExitsError(Exception):
    def __str__(self):
        raise SystemExit(1)


class HidesItsCauseError(Exception):
    @property
    def __cause__(self):
        raise ValueError


class NoName(type):
    @property
    def __name__(cls):
        raise ValueError


class NamelessError(Exception, metaclass=NoName):
    pass


ODD = [
    LooksUpError("gone"),
    ExitsError(),
    HidesItsCauseError("gone"),
    NamelessError("gone"),
    SyntaxError("gone", ("file.py", 1, 1, 7)),
]


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize("error", ODD, ids=[name_of(error) for error in ODD])
def test_every_exception_has_a_name_a_text_a_summary_and_a_traceback(error):
    error = raised(error)
    assert name_of(error) == type.__dict__["__name__"].__get__(type(error))
    assert name_of(error) in summary_of(error)
    assert name_of(error) in traceback_of(error, error.__traceback__)
    assert "in raised" in traceback_of(error, error.__traceback__)

    failure = failure_of(error, "m")
    assert failure.message == f"model 'm': {name_of(error)}: {text_of(error)}"
    assert "in raised" in failure.detail


def test_an_ordinary_traceback_is_that_of_python():
    error = raised(ZeroDivisionError("the sky fell"))
    assert summary_of(error) == "ZeroDivisionError: the sky fell"
    assert traceback_of(error, error.__traceback__).startswith("Traceback (most recent call last):\n")


def test_a_long_traceback_lacks_its_middle():
    error = raised(ValueError("a" + "b" * 1_000_000 + "c"))
    shown = traceback_of(error, error.__traceback__)
    assert len(shown) < 70_000
    assert shown.endswith("bbc")


@pytest.mark.parametrize("text", ["x" * 5000, "é" * 5000, "漢" * 5000, "😀" * 5000, "%\n" * 5000, "\udc80" * 5000])
def test_the_message_of_an_error_fits_in_the_headers_of_grpc(text):
    message = failure_of(ValueError(text), "m").message
    encoded = sum(1 if 0x20 <= byte < 0x7F and byte != ord("%") else 3 for byte in message.encode())
    assert 3500 < encoded < 7500
    assert "characters] … " in message
