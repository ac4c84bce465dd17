"""The model configuration that ``auto_complete_config`` completes."""

from __future__ import annotations

import json
import operator
from typing import Any

from pytriton.python_backend.errors import TritonModelException

_SCHEDULERS = ("dynamic_batching", "sequence_batching", "ensemble_scheduling")
_INPUT_KEYS = ("name", "data_type", "dims", "optional")
_OUTPUT_KEYS = ("name", "data_type", "dims")


class ModelConfigError(TritonModelException, ValueError):
    """Raised for a setting that is malformed or contradicts ``config.pbtxt``.

    It is a ``ValueError``, which models of Triton's Python backend catch.
    """


class ModelConfig:
    """A model's configuration. Settings of ``config.pbtxt`` are kept; missing ones can be added.

    Args:
        model_config: The configuration as JSON.
    """

    def __init__(self, model_config: str) -> None:
        # Models change settings that have no method here through this name, which it has in Triton's Python backend.
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        """Returns the configuration as a dictionary."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Sets the largest batch size; 0 for a model that does not batch.

        Raises:
            TritonModelException: ``config.pbtxt`` has a larger one.
        """
        if self._model_config.get("max_batch_size", 0) > max_batch_size:
            raise self._contradiction("max_batch_size", self._model_config["max_batch_size"], max_batch_size)
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enables dynamic batching.

        Raises:
            TritonModelException: ``config.pbtxt`` has another scheduler.
        """
        for scheduler in _SCHEDULERS[1:]:
            if scheduler in self._model_config:
                raise self._contradiction("scheduler", scheduler, _SCHEDULERS[0])
        self._model_config.setdefault(_SCHEDULERS[0], {})

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        """Sets whether the model is decoupled: ``{"decoupled": True}``.

        Raises:
            TritonModelException: The dictionary has other keys, or ``config.pbtxt`` contradicts it.
        """
        for key in transaction_policy_dict:
            if key != "decoupled":
                raise ModelConfigError(
                    f"set_model_transaction_policy() has the key {key!r}: only 'decoupled' is allowed"
                )
        known = self._model_config.setdefault("model_transaction_policy", {})
        for key, wanted in transaction_policy_dict.items():
            if known.setdefault(key, wanted) != wanted:
                raise self._contradiction(key, known[key], wanted)

    def add_input(self, input: dict[str, Any]) -> None:
        """Adds an input: ``{"name": "x", "data_type": "TYPE_FP32", "dims": [-1], "optional": True}``.

        Raises:
            TritonModelException: A key is missing or unknown, or ``config.pbtxt`` contradicts it.
        """
        self._add("input", input, _INPUT_KEYS)

    def add_output(self, output: dict[str, Any]) -> None:
        """Adds an output: ``{"name": "y", "data_type": "TYPE_FP32", "dims": [-1]}``.

        Raises:
            TritonModelException: A key is missing or unknown, or ``config.pbtxt`` contradicts it.
        """
        self._add("output", output, _OUTPUT_KEYS)

    def _add(self, kind: str, tensor: dict[str, Any], keys: tuple[str, ...]) -> None:
        for key in tensor:
            if key not in keys:
                raise ModelConfigError(f"an {kind} has the key {key!r}: there are {', '.join(map(repr, keys))}")
        for key in ("name", "data_type", "dims"):
            if key not in tensor:
                raise ModelConfigError(f"{kind} {tensor.get('name', tensor)!r} lacks the key {key!r}")
        tensor = dict(tensor, dims=_dims(kind, tensor))
        tensors = self._model_config.setdefault(kind, [])
        known = next((each for each in tensors if each.get("name") == tensor["name"]), None)
        if known is None:
            tensors.append(tensor)
            return
        for key, unset in (("data_type", "TYPE_INVALID"), ("dims", [])):
            wanted = tensor[key]
            if known.get(key, unset) in (unset, wanted):
                known[key] = wanted
            else:
                raise self._contradiction(f"{key} of {kind} {tensor['name']!r}", known[key], wanted)
        if "optional" in tensor and bool(tensor["optional"]) != known.get("optional", False):
            raise self._contradiction(
                f"optional of {kind} {tensor['name']!r}", known.get("optional", False), tensor["optional"]
            )

    def _contradiction(self, what: str, said: object, wanted: object) -> ModelConfigError:
        return ModelConfigError(
            f"auto_complete_config of model {self._model_config.get('name', '')!r}: {what} is {said!r} in "
            f"config.pbtxt, and cannot become {wanted!r}"
        )


def _dims(kind: str, tensor: dict[str, Any]) -> list[int]:
    try:
        return [operator.index(dim) for dim in tensor["dims"]]
    except TypeError:
        raise ModelConfigError(
            f"{kind} {tensor['name']!r} has the dims {tensor['dims']!r}: use a list of integers"
        ) from None
