"""``pytriton infer``: sends requests to a model, and prints or saves the responses."""

from __future__ import annotations

import argparse
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pytriton.cli.command import CommandParser, as_utf_8
from pytriton.cli.output import show
from pytriton.cli.servers import URL_HELP, choose_server, grpc_url, response_timeout_s
from pytriton.cli.tensors import Array, check_suffix, printable, read_assignment, read_value, save
from pytriton.client.decoupled import DecoupledModelClient
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.model_client import ModelClient
from pytriton.client.tls import TLSConfig
from pytriton.model_config.triton_model_config import TritonModelConfig

NAME = "infer"
_LITERAL = re.compile(r"[\[{\"'\d-]")  # the beginning of a value
_WORDS_HELP = (
    "the server, the model's name and its inputs: name='[[1,2]]', name=text, name=@array.npy, or name=@file for bytes, "
    f"with or without the batch dimension. URL: {URL_HELP}"
)
HELP = "send requests to a model, and print or save its outputs"


def add_arguments(parser: CommandParser) -> None:
    """Adds the command's arguments."""
    parser.usage = "%(prog)s [-h] [--<option> VALUE ...] [URL] MODEL [NAME=VALUE ...]"
    parser.add_list("words", nargs="+", metavar="[URL] MODEL [NAME=VALUE ...]", help=_WORDS_HELP)
    parser.add_argument("--model-version", metavar="N", help="the model's version; the latest by default")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="save the outputs to a .npz, or the only one to a .npy"
    )
    parser.add_argument(
        "--parameter",
        type=as_utf_8,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter for the model",
    )


def run(options: argparse.Namespace) -> None:
    """Sends the request, and prints or saves the response; a decoupled model may send several."""
    url, model, assignments = _split(options.words)
    url, token = choose_server(url, options.token, "pytriton infer")
    parameters = dict(map(_parameter, options.parameter))
    settings: dict[str, Any] = {
        "model_version": options.model_version,
        "init_timeout_s": options.timeout,
        "inference_timeout_s": response_timeout_s(options.timeout),
        "access_token": token,
        "tls": TLSConfig(root_certificates=options.ca),
        "convert_dtypes": True,
    }
    if options.save is not None:
        check_suffix(options.save)
    with ModelClient(url, model, **settings) as client:
        config = client.model_config
        of_bytes = {spec.name for spec in config.inputs if spec.datatype.name == "BYTES"}
        inputs = dict(read_assignment(word, of_bytes) for word in assignments)
        if len(inputs) < len(assignments):
            raise PyTritonClientValueError("An input is given twice; give each once.")
        batch = _is_batch(config, inputs)
        if not config.decoupled:
            send = client.infer_batch if batch else client.infer_sample
            _show(options, config, send(parameters=parameters, **inputs), options.save)
            return
        with DecoupledModelClient(grpc_url(url), model, model_config=config, **settings) as streaming:
            stream = streaming.infer_batch if batch else streaming.infer_sample
            for number, response in enumerate(stream(parameters=parameters, **inputs), start=1):
                _show(options, config, response, _numbered(options.save, number))


def _split(words: Sequence[str]) -> tuple[str | None, str, Sequence[str]]:
    """Splits the words into the URL, if there is one, the model's name, and the inputs."""
    names = list(itertools.takewhile(lambda word: "=" not in word, words[:2]))
    *urls, model = names or [""]
    if urls and _LITERAL.match(model):
        raise PyTritonClientValueError(f"{model!r} is no input; write NAME={model!r}.")
    if not model or ":" in model or "/" in model:
        raise PyTritonClientValueError(f"The name of a model is missing; write it before its inputs, not {words[0]!r}.")
    return (urls[0] if urls else None), model, words[len(names) :]


def _parameter(word: str) -> tuple[str, Any]:
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise PyTritonClientValueError(f"{word!r} is not a parameter; write --parameter name=value.")
    return name, read_value(text)


def _is_batch(config: TritonModelConfig, inputs: Mapping[str, Any]) -> bool:
    """Returns whether the inputs have the batch dimension; inputs that do not fit either way are refused later."""
    if not config.batching:
        return False
    dimensions = {spec.name: len(spec.shape) for spec in config.inputs}
    return any(name in dimensions and _ndim(value) > dimensions[name] for name, value in inputs.items())


def _ndim(value: Any) -> int:
    try:
        return np.ndim(value)
    except ValueError:  # rows of different lengths
        return 0


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_stem(f"{path.stem}-{number}")


def _show(
    options: argparse.Namespace, config: TritonModelConfig, response: Mapping[str, Array], path: Path | None
) -> None:
    if path is not None:
        save(path, response)
    elif options.json:
        show(json.dumps({name: printable(array) for name, array in response.items()}, allow_nan=False))
    else:
        datatypes = {spec.name: spec.datatype.name for spec in config.outputs}
        for name, array in response.items():
            show(f"{name}: {datatypes.get(name, array.dtype)} {array.shape}\n{array}")
