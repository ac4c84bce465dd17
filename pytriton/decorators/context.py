"""The decorator that passes the context of a call."""

from __future__ import annotations

from typing import Any

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.decorators.ordering import Arguments, InferFunc, Inputs, are_requests, stage_decorator
from pytriton.proxy.context import current_context
from pytriton.proxy.tensors.batch import WholeBatch


@stage_decorator("triton_context", None, None)
def triton_context(wrapped: InferFunc, instance: object, args: Arguments, kwargs: Inputs) -> Any:
    """Passes a `TritonContext` as the keyword argument ``triton_context``.

    It has the model's configuration and the requests of the call. With ``@batch`` and ``@sample``, it is the way to
    access request parameters and forwarded headers. It may be placed above or below any other decorator, with the same
    effect.

    Raises:
        PyTritonContextError: The call does not come from the server.

    Examples:
        >>> @batch
        ... @triton_context
        ... def generate(prompt, triton_context):
        ...     temperatures = [each.get("temperature", 1) for each in triton_context.row_parameters]
        ...     ...
    """
    context = current_context("@triton_context")
    if args and type(args[0]) is not WholeBatch and are_requests(args[0]):
        context = context._of(args[0])
    return wrapped(*args, **kwargs | {TRITON_CONTEXT_FIELD_NAME: context})
