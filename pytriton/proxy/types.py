"""Requests and responses, the arguments and results of inference callables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Union

import numpy as np

from pytriton.proxy.telemetry import traced_span
from pytriton.proxy.wire.encoding import ParameterValue

Array = np.ndarray[Any, np.dtype[Any]]


class _NamedArrays(MutableMapping[str, Array]):
    """A dictionary of arrays under the attribute ``data``."""

    def __init__(self, data: dict[str, Array]) -> None:
        self._data = data

    @property
    def data(self) -> dict[str, Array]:
        """The arrays by name."""
        return self._data

    @data.setter
    def data(self, data: dict[str, Array]) -> None:
        self._data = data

    def __getitem__(self, name: str) -> Array:
        return self.data[name]

    def __setitem__(self, name: str, value: Array) -> None:
        self.data[name] = value

    def __delitem__(self, name: str) -> None:
        del self.data[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


@dataclasses.dataclass(init=False, repr=False, eq=False)
class Request(_NamedArrays):
    """One inference request: its inputs by name, as in a dictionary.

    Attributes:
        data: Input arrays by name, in the order of the model's inputs. If the model batches, their first dimension is
            the request's batch size.
        parameters: Request parameters and forwarded headers; empty if the client sent none, and None if the request
            was made by hand without any.
        span: The request's OpenTelemetry span, a child of Triton's span of the model; None if it is not traced. The
            worker ends it with the request.
        requested_output_names: Names of the requested outputs; of all if the client named none.
        request_id: The id that the client gave the request, or None.

    Examples:
        >>> request = Request({"x": np.zeros((1, 2), np.float32)}, parameters={"temperature": 1})
        >>> request["x"].shape, request.parameters["temperature"]
        ((1, 2), 1)
    """

    data: dict[str, Array] = dataclasses.field()
    parameters: dict[str, Any] | None = None
    span: Any | None = None
    requested_output_names: list[str] | None = None
    request_id: str | None = None

    def __init__(
        self,
        data: dict[str, Array],
        parameters: dict[str, Any] | None = None,
        span: Any | None = None,
        requested_output_names: list[str] | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(data)
        self.parameters = parameters
        self.span = span
        self.requested_output_names = requested_output_names
        self.request_id = request_id

    @contextlib.contextmanager
    def traced_span(self, span_name: str) -> Iterator[Any]:
        """Opens a child of the request's OpenTelemetry `span`; does nothing if the request has none.

        Args:
            span_name: The child's name.

        Yields:
            The child, or None.

        Examples:
            >>> with Request({}).traced_span("tokenize") as span:
            ...     assert span is None
        """
        with traced_span(self, span_name) as child:
            yield child

    def is_cancelled(self) -> bool:
        """Returns whether the client has cancelled or disconnected, or the request's timeout has passed.

        It is cheap enough to call in every iteration of a loop. A request that does not come from the server is never
        cancelled.

        Examples:
            >>> Request({}).is_cancelled()
            False
        """
        return False

    def _on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls ``callback`` once when the request is cancelled, immediately if it already is, from any thread.

        Returns:
            A function that unregisters the callback.
        """
        return lambda: None

    def __repr__(self) -> str:
        return f"Request({self.data!r}, parameters={self.parameters!r})"


for _field in dataclasses.fields(Request)[1:]:
    delattr(Request, _field.name)  # requests of a batch look these up when they are needed


@dataclasses.dataclass(init=False, repr=False, eq=False)
class Response(_NamedArrays):
    """One inference response: its outputs by name, as in a dictionary.

    Args:
        data: The outputs.
        final: See the attribute.
        parameters: See the attribute.

    Attributes:
        data: Output arrays by name. If the model batches, their first dimension is the request's batch size.
        final: Whether this is the request's last response. With it, a generator that serves several requests at a time
            ends one of them and continues with the others. Without data, it only ends the request.
        parameters: Response parameters, or None: strings, integers, booleans and floats by name.

    Examples:
        >>> response = Response({"token": np.array([7])}, final=True)
        >>> response["token"], response.final
        (array([7]), True)
    """

    data: dict[str, Array] = dataclasses.field()
    final: bool = False
    parameters: dict[str, ParameterValue] | None = None

    def __init__(
        self, data: dict[str, Array], final: bool = False, parameters: dict[str, ParameterValue] | None = None
    ) -> None:
        super().__init__(data)
        self.final = final
        self.parameters = parameters

    def __repr__(self) -> str:
        return f"Response({self.data!r}{', final=True' if self.final else ''})"


Requests = list[Request]
"""The requests of a batch."""
Responses = list[Response]
"""The responses to them."""
ResponsesOrError = Union[Responses, Exception]
"""The responses, or the error that replaces them."""
ResponsesNoneOrError = Union[Responses, Exception, None]
"""The same, or None at the end of a stream."""
Scope = dict[str, Any]
"""Inputs or other values by name."""


def described(value: object) -> str:
    """Names a value's type for error messages: ``"an int"``, ``"a list"``, ``"None"``."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' or name == 'ndarray' else 'a'} {name}"
