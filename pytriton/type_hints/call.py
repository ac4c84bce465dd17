"""Calls functions with type hints: converts arrays to their arguments, and their results to arrays."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from typing import Any

from pytriton.constants import TRITON_CONTEXT_FIELD_NAME
from pytriton.exceptions import PyTritonInvalidRequestError, PyTritonValidationError
from pytriton.proxy.worker.execution_mode import callable_kind
from pytriton.type_hints.result import ResultHint
from pytriton.type_hints.value import ValueHint


class Call:
    """Calls a function: converts arrays to its arguments, and its results to arrays.

    Args:
        function: The function.
        name: Its name.
        arguments: The hints of its arguments.
        result: The hint of its result.
        defaults: Arguments for inputs that a request omits, if the function itself has no default.
        context: The name of the argument for the `TritonContext`; None if there is none.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        arguments: Mapping[str, ValueHint],
        result: ResultHint,
        defaults: Mapping[str, Any],
        context: str | None,
    ) -> None:
        self._function = function
        self._name = name
        self._decoders = {name: hint.decode for name, hint in arguments.items() if hint.decode is not None}
        self._encoders = {name: hint.encode for name, hint in result.values.items() if hint.encode is not None}
        self._named = result.named
        self._streams = result.streams
        self._defaults = dict(defaults)
        self._context = None if context == TRITON_CONTEXT_FIELD_NAME else context

    def function(self) -> Callable[..., Any]:
        """Returns a function from arrays to arrays: the function itself if it is one already."""
        kind = callable_kind(self._function)
        converts = self._decoders or self._encoders or self._named or self._defaults or self._context
        if not converts and kind.yields == self._streams:
            return self._function
        if self._streams:
            made: Callable[..., Any] = self._async_stream() if kind.is_async else self._stream()
        else:
            made = self._coroutine() if kind.is_async else self._plain()
        functools.update_wrapper(made, self._function)
        made.__name__ = made.__qualname__ = self._name
        if hasattr(self._function, "close"):  # the object of a process instance has one
            made.close = self._function.close  # type: ignore[attr-defined]
        return made

    def _plain(self) -> Callable[..., Any]:
        def call(**inputs: Any) -> Any:
            return self._encode(self._function(**self._decode(inputs)))

        return call

    def _coroutine(self) -> Callable[..., Any]:
        async def call(**inputs: Any) -> Any:
            return self._encode(await self._function(**self._decode(inputs)))

        return call

    def _stream(self) -> Callable[..., Any]:
        def call(**inputs: Any) -> Generator[Any, None, None]:
            stream = self._function(**self._decode(inputs))
            with contextlib.closing(stream) if hasattr(stream, "close") else contextlib.nullcontext():
                for result in stream:
                    yield self._encode(result)

        return call

    def _async_stream(self) -> Callable[..., Any]:
        async def call(**inputs: Any) -> AsyncGenerator[Any, None]:
            stream = self._function(**self._decode(inputs))
            if inspect.isawaitable(stream):
                stream = await stream
            async with contextlib.aclosing(stream) if hasattr(stream, "aclose") else contextlib.nullcontext():
                async for result in stream:
                    yield self._encode(result)

        return call

    def _decode(self, inputs: dict[str, Any]) -> dict[str, Any]:
        for name, decode in self._decoders.items():
            if name in inputs:
                try:
                    inputs[name] = decode(inputs[name])
                except PyTritonValidationError as error:
                    raise PyTritonInvalidRequestError(f"input {name!r} {error.message}") from error
        if self._context is not None:
            inputs[self._context] = inputs.pop(TRITON_CONTEXT_FIELD_NAME)
        return self._defaults | inputs if self._defaults else inputs

    def _encode(self, result: Any) -> Mapping[str, Any]:
        outputs: Mapping[str, Any] = result if self._named is None else self._named(result)
        if not self._encoders:
            return outputs
        encoded = dict(outputs)
        for name, encode in self._encoders.items():
            try:
                encoded[name] = encode(encoded[name])
            except KeyError:
                raise PyTritonValidationError(f"{self._name} returned no {name!r}") from None
            except PyTritonValidationError as error:
                raise PyTritonValidationError(f"output {name!r} {error.message}") from None
        return encoded
