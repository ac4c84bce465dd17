"""Descriptions of models."""

from __future__ import annotations

from typing import Any

from pytriton.gateway.access import ApiKey
from pytriton.gateway.errors import RequestError
from pytriton.gateway.models import Model, Models
from pytriton.gateway.openai.endpoints import OpenAIEndpoints
from pytriton.gateway.responses import Send, send_json
from pytriton.model_config.triton_model_config import TensorSpec


async def models(models: Models, openai: OpenAIEndpoints, send: Send, key: ApiKey | None) -> None:
    """Sends the list of models that are ready and that an API key may use, as OpenAI's API does."""
    data = []
    for name in dict.fromkeys(name for name, _ in await models.names() if key is None or key.may_use(name)):
        try:
            found = await models.find(name)
        except RequestError:  # it has been unloaded meanwhile
            continue
        data += [description(found, public_name) for public_name in openai.names(name) or [name]]
    await send_json(send, {"object": "list", "data": data})


async def model(model: Model, public_name: str, send: Send) -> None:
    """Sends the description of one model."""
    await send_json(send, description(model, public_name))


def description(model: Model, public_name: str) -> dict[str, Any]:
    """Returns the description of a model."""
    config = model.config
    return {
        "id": public_name,
        "object": "model",
        "created": 0,
        "owned_by": "pytriton",
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
    if spec.media_type:
        described["media_type"] = spec.media_type
    return described
