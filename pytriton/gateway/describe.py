"""Descriptions of models."""

from __future__ import annotations

from typing import Any

from pytriton.gateway.access import ApiKey
from pytriton.gateway.errors import RequestError
from pytriton.gateway.models import Model, Models
from pytriton.gateway.responses import Send, send_json
from pytriton.model_config.triton_model_config import TensorSpec


async def models(models: Models, send: Send, key: ApiKey | None) -> None:
    """Sends the list of models that are ready and that an API key may use, as OpenAI's API does."""
    data = []
    for name in dict.fromkeys(name for name, _ in await models.names() if key is None or key.may_use(name)):
        try:
            data.append(
                {"id": name, "object": "model", "created": 0, "owned_by": "pytriton"} | await _model(models, name)
            )
        except RequestError:  # it has been unloaded meanwhile
            continue
    await send_json(send, {"object": "list", "data": data})


async def model(model: Model, send: Send) -> None:
    """Sends the description of one model."""
    await send_json(send, _description(model))


async def _model(models: Models, name: str) -> dict[str, Any]:
    return _description(await models.find(name))


def _description(model: Model) -> dict[str, Any]:
    config = model.config
    return {
        "name": config.model_name,
        "inputs": [_tensor(spec) for spec in config.inputs],
        "outputs": [_tensor(spec) for spec in config.outputs],
        "max_batch_size": config.max_batch_size,
        "streams": config.decoupled,
    }


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype.name, "shape": list(spec.shape)}
    if spec.optional:
        described["optional"] = True
    return described
