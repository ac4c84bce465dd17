"""Errors that name settings, in the words of a command."""

from __future__ import annotations

import pytest

from pytriton.cli.settings import flags_of, in_flags
from pytriton.server.config import TritonConfig

FLAGS = flags_of(TritonConfig)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("TritonConfig.http_port is 'many'; use an integer.", "--http-port is 'many'; use an integer."),
        ("choose another port with TritonConfig(http_port=...).", "choose another port with --http-port."),
        ("Enable it: TritonConfig(http_address='127.0.0.1').", "Enable it: --http-address 127.0.0.1."),
        ("TritonConfig.nothing", "TritonConfig.nothing"),
        ("ModelConfig(batching=False)", "ModelConfig(batching=False)"),
        ("TritonConfig(http_port=1, grpc_port=2)", "TritonConfig(http_port=1, grpc_port=2)"),
    ],
)
def test_settings_are_named_by_their_flags(message, shown):
    assert in_flags(message, FLAGS) == shown


def test_a_command_without_settings_shows_the_message_as_it_is():
    assert in_flags("TritonConfig.http_port", {}) == "TritonConfig.http_port"
