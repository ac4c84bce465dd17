"""``pytriton infer``: sends requests to a model, and prints or saves the responses."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytriton.cli.tensors import Array, printable, read_assignment, read_value, save
from pytriton.client.decoupled import DecoupledModelClient
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.model_client import ModelClient
from pytriton.client.tls import TLSConfig
from pytriton.model_config.triton_model_config import TritonModelConfig

NAME = "infer"
HELP = "send requests to a model, and print or save its outputs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("model", metavar="MODEL", help="the model's name")
    parser.add_argument(
        "inputs",
        nargs="*",
        metavar="NAME=VALUE",
        help="an input: name=@array.npy, name='[[1,2]]' or name=text; with or without the batch dimension",
    )
    parser.add_argument("--model-version", metavar="N", help="the model's version; the latest by default")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help="save the outputs to a .npz, or the only one to a .npy"
    )
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="a parameter for the model"
    )


def run(options: argparse.Namespace) -> None:
    """Sends the request, and prints or saves the response; a decoupled model may send several."""
    inputs = dict(read_assignment(word) for word in options.inputs)
    if len(inputs) < len(options.inputs):
        raise PyTritonClientValueError("An input is given twice; give each once.")
    parameters = {name: read_value(text) for name, _, text in (word.partition("=") for word in options.parameter)}
    client = ModelClient(
        options.url,
        options.model,
        options.model_version,
        init_timeout_s=options.timeout,
        inference_timeout_s=options.timeout,
        access_token=options.token,
        tls=TLSConfig(root_certificates=options.ca),
        convert_dtypes=True,
    )
    with client:
        config = client.model_config
        batch = _is_batch(config, inputs)
        if not config.decoupled:
            send = client.infer_batch if batch else client.infer_sample
            _show(options, config, send(parameters=parameters, **inputs), options.save)
            return
        with DecoupledModelClient.from_existing_client(client) as streaming:
            stream = streaming.infer_batch if batch else streaming.infer_sample
            for number, response in enumerate(stream(parameters=parameters, **inputs), start=1):
                _show(options, config, response, _numbered(options.save, number))


def _is_batch(config: TritonModelConfig, inputs: Mapping[str, Any]) -> bool:
    """Returns whether the inputs have the batch dimension; what fits in no way is refused later, with the reason."""
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
        print(json.dumps({name: printable(array) for name, array in response.items()}), flush=True)
    else:
        datatypes = {spec.name: spec.datatype.name for spec in config.outputs}
        for name, array in response.items():
            print(f"{name}: {datatypes.get(name, array.dtype)} {array.shape}\n{array}", flush=True)
