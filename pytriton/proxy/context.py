"""What an inference callable can learn of the server while it is being called."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Optional

from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config.model_spec import ModelSpec

Requests = Sequence[Mapping[str, Any]]

Call = tuple[Requests, Optional[Sequence[int]]]
"""The requests that a call is made for, and the number of rows of each, where it is known already."""

MODEL: ContextVar[ModelSpec] = ContextVar("pytriton_model")
"""The model whose inference callable is being called, in a worker."""

CALL: ContextVar[Call] = ContextVar("pytriton_call", default=((), None))
"""What a decorator is unpacking for the function below it."""


class ModelConfigDict(dict[str, ModelSpec]):
    """Models as they were bound, by name."""


@dataclasses.dataclass
class TritonContext:
    """What `triton_context` hands to an inference callable.

    Attributes:
        model_configs: The model that is being called, by its name; `model_config` is the handier form.
        requests: The requests that the call is made for, in the order of their rows. `sample` makes a call for each
            request, `group_by_keys` and `group_by_values` for those of a group.
    """

    model_configs: ModelConfigDict = dataclasses.field(default_factory=ModelConfigDict)
    requests: Requests = ()
    _rows: Sequence[int] | None = dataclasses.field(default=None, repr=False)

    @property
    def model_config(self) -> ModelSpec:
        """The model as it was bound: its name, version, inputs, outputs, batching and more.

        Raises:
            PyTritonInvalidOperationError: The context was made by hand, without a model.
        """
        for spec in self.model_configs.values():
            return spec
        raise PyTritonInvalidOperationError("This context knows no model: it does not come from a call by the server.")

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """What clients sent besides tensors, headers that the server forwards among it: one dictionary per request."""
        return [getattr(request, "parameters", None) or {} for request in self.requests]

    @property
    def rows(self) -> list[int]:
        """How many rows of the function's arrays each request has; empty where the model does not batch."""
        if self._rows is not None:
            return list(self._rows)
        if not self.model_config.batching:
            return []
        return [len(next(iter(request.values()))) if len(request) else 1 for request in self.requests]

    @property
    def row_parameters(self) -> list[dict[str, Any]]:
        """The parameters once more, one dictionary per row: those of the request that brought the row."""
        pairs = zip(self.parameters, self.rows)
        return [parameters for parameters, rows in pairs for _ in range(rows)]


def current_context(what: str) -> TritonContext:
    """The context of the call that is being made.

    Args:
        what: Who asks, for the error.

    Raises:
        PyTritonInvalidOperationError: No worker is calling; a test may set ``MODEL`` itself.
    """
    try:
        spec = MODEL.get()
    except LookupError:
        raise PyTritonInvalidOperationError(
            f"{what} needs the model's configuration, which is known only while the server calls: bind the function "
            "with Triton.bind and send it a request"
        ) from None
    return TritonContext(ModelConfigDict({spec.name: spec}), *CALL.get())
