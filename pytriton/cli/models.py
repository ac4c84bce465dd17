"""``pytriton models``: lists the models of a server."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

from pytriton.cli.output import show
from pytriton.cli.servers import URL_HELP, choose_server, response_timeout_s
from pytriton.client.auth import create_auth_headers
from pytriton.client.core.connecting import ConnectOptions
from pytriton.client.core.servers import Server
from pytriton.client.core.session import read_config
from pytriton.client.core.transports import blocking_transport
from pytriton.client.exceptions import Failure, PyTritonClientInferenceServerError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl

NAME = "models"
HELP = "show what is served: inputs, outputs, states and counts"

_RESTRICTED = "not shown: the server requires its token for that"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("url", nargs="?", metavar="URL", help=URL_HELP)


def run(options: argparse.Namespace) -> None:
    """Lists the models of a server."""
    address, token = choose_server(options.url, options.token, "pytriton models")
    url = TritonUrl.from_url(address)
    transport = blocking_transport(url, ConnectOptions(TLSConfig(root_certificates=options.ca)))
    server = Server(transport, create_auth_headers(token, url.protocol) if token else {})
    try:
        models = list(_models(server, response_timeout_s(options.timeout)))
    except PyTritonClientInferenceServerError as error:
        misdirected = None if error.failure is Failure.UNREACHABLE else transport.other_protocol()
        raise error if misdirected is None else misdirected from None
    finally:
        transport.close()
    if options.json:
        show(json.dumps(models))
        return
    for model in models:
        show("\n".join(_lines(model)))
    if not models:
        show(f"The server at {url.with_scheme} has no models.")


def _models(server: Server, timeout_s: float) -> Iterator[dict[str, Any]]:
    """Collects the known details of each model version, for JSON."""
    for entry in server.call("get_model_repository_index", timeout_s)():
        model = {
            "name": entry["name"],
            "version": entry.get("version", ""),
            "state": entry.get("state", "UNAVAILABLE"),
            "reason": entry.get("reason", ""),
        }
        if model["state"] == "READY":
            name, version = model["name"], model["version"]
            message = server.call("get_model_config", timeout_s, name, version)()
            config = read_config(message, server.url, version)
            model |= {
                "max_batch_size": config.max_batch_size,
                "decoupled": config.decoupled,
                "inputs": list(map(str, config.inputs)),
                "outputs": list(map(str, config.outputs)),
                "counts": _counts(server, timeout_s, name, version),
            }
        yield model


def _counts(server: Server, timeout_s: float, name: str, version: str) -> dict[str, int] | None:
    """Returns a model's request counts; None if the server does not disclose them."""
    try:
        statistics = server.call("get_inference_statistics", timeout_s, name, version)()
    except PyTritonClientInferenceServerError as error:
        if error.failure is not Failure.RESTRICTED:
            raise
        return None
    (model,) = statistics["model_stats"]
    requests = model.get("inference_stats", {})
    return {
        "inferences": int(model.get("inference_count", 0)),
        "executions": int(model.get("execution_count", 0)),
        "failed": int(requests.get("fail", {}).get("count", 0)),
    }


def _lines(model: dict[str, Any]) -> Iterator[str]:
    reason = f": {model['reason']}" if model["reason"] else ""
    version = f" version {model['version']}" if model["version"] else ""
    yield f"{model['name']}{version}: {model['state']}{reason}"
    if model["state"] != "READY":
        return
    batches = f"batches of up to {model['max_batch_size']}" if model["max_batch_size"] else "no batches"
    yield f"  takes   {'; '.join(model['inputs']) or 'no inputs'} ({batches})"
    yield f"  gives   {'; '.join(model['outputs'])}{' (any number of times)' if model['decoupled'] else ''}"
    counts = model["counts"]
    yield "  counts  " + (", ".join(f"{number} {what}" for what, number in counts.items()) if counts else _RESTRICTED)
