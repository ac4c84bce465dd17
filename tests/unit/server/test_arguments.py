"""Arguments of another type are refused where a `Triton` is made, and not where something fails later."""

from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config import ModelConfig
from pytriton.triton import RemoteTriton, Triton, TritonConfig, TritonLifecyclePolicy, TritonSecurityConfig

MISTAKES = {
    "a dictionary of settings": (
        {"config": {"http_port": 1}},
        "Triton: config is {'http_port': 1}; use TritonConfig(http_port=...).",
    ),
    "settings of a model": (
        {"config": ModelConfig()},
        "Triton: config is ModelConfig(batching=True, ",
    ),
    "the class": (
        {"config": TritonConfig},
        "Triton: config is the class TritonConfig; use an object, such as TritonConfig(...).",
    ),
    "a token": ({"security_config": "secret"}, "Triton: security_config is 'secret'; use a TritonSecurityConfig."),
    "a policy": (
        {"triton_lifecycle_policy": True},
        "Triton: triton_lifecycle_policy is True; use a TritonLifecyclePolicy.",
    ),
    "a number for a folder": ({"workspace": 3}, "Triton: workspace is 3; use the path of a folder."),
    "no folder": ({"workspace": ""}, "Triton: workspace is ''; use the path of a folder."),
    "a number for a server": ({"server_path": 3}, "Triton: server_path is 3; use the path of a folder."),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_an_argument_of_another_type_is_refused(mistake):
    arguments, message = MISTAKES[mistake]
    with pytest.raises(PyTritonBadParameterError) as caught:
        Triton(**arguments)
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("url", [8000, None, ["localhost"]])
def test_a_url_that_is_not_text_is_refused(url):
    with pytest.raises(PyTritonBadParameterError) as caught:
        RemoteTriton(url=url)
    assert caught.value.message.startswith(f"url is {url!r}; use text: host, host:port")


@pytest.mark.parametrize("endpoints", ["model-repository", 3])
def test_endpoints_other_than_a_list_are_refused(endpoints):
    with pytest.raises(PyTritonValidationError, match=rf"restricted_endpoints is {endpoints!r}; use a list"):
        TritonSecurityConfig(restricted_endpoints=endpoints)


@pytest.mark.parametrize("setting", ["launch_triton_on_startup", "local_model_store"])
def test_a_policy_of_text_is_refused(setting):
    with pytest.raises(PyTritonBadParameterError, match=f"TritonLifecyclePolicy.{setting} is 'no'; use True or False"):
        TritonLifecyclePolicy(**{setting: "no"})
