"""The Triton context, through which an inference callable uses the server during a call."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Optional, Protocol, TypedDict

from pytriton.exceptions import PyTritonContextError, PyTritonInvalidOperationError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.services.client import CURRENT_CALLER, Caller, ServerClient, current_client
from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.tensors.batch import WholeBatch
from pytriton.proxy.types import Array
from pytriton.proxy.wire.encoding import ParameterValue
from pytriton.proxy.wire.service import NO_BATCH, SEQUENCE_END, SEQUENCE_START

if TYPE_CHECKING:
    from typing_extensions import Unpack

Requests = Sequence[Mapping[str, Any]]

CallFrame = tuple[Requests, Optional[Sequence[int]]]
"""The requests of a call, and the number of rows of each if that is known."""

MODEL: ContextVar[ModelSpec] = ContextVar("pytriton_model")
"""The model whose inference callable a worker is calling."""

CALL_FRAME: ContextVar[CallFrame] = ContextVar("pytriton_call", default=((), None))
"""The requests that a decorator is unpacking for the function below it."""


class CallOptions(TypedDict, total=False):
    """Optional keyword arguments of a call.

    Attributes:
        version: The model's version; by default, Triton chooses.
        parameters: Request parameters.
        request_id: The request's id.
        timeout_s: How long to wait for a response, in seconds; unlimited by default. After that, the request is
            cancelled.
        requested_outputs: Names of the requested outputs; all by default.
        sequence_id: The sequence that the request belongs to, a number above 0 or a string.
        sequence_start: Whether the request starts the sequence.
        sequence_end: Whether the request ends the sequence.
    """

    version: int | None
    parameters: Mapping[str, ParameterValue] | None
    request_id: str
    timeout_s: float | None
    requested_outputs: Sequence[str] | None
    sequence_id: int | str
    sequence_start: bool
    sequence_end: bool


class Bound(Protocol):
    """An inference callable that serves a model: a `pytriton.proxy.worker.worker.Worker`."""

    @property
    def infer_func(self) -> Callable[..., Any]:
        """The callable."""

    @property
    def spec(self) -> ModelSpec:
        """The model."""


BOUND: weakref.WeakSet[Bound] = weakref.WeakSet()
"""The inference callables that this process serves."""


class ModelConfigDict(MutableMapping[Any, ModelSpec]):
    """The specifications of the models that this process serves, by inference callable.

    Args:
        own: Further specifications, by callable or name. Those by name are found, but not among the keys.

    Attributes:
        own: These specifications.
    """

    def __init__(self, own: Mapping[Any, ModelSpec] | None = None) -> None:
        """Copies the further specifications."""
        self.own: dict[Any, ModelSpec] = dict(own or {})

    def __getitem__(self, key: Any) -> ModelSpec:
        if not callable(key):
            return self.own[key]
        for infer_func, spec in self._by_callable():
            if infer_func is key or infer_func == key:
                return spec
        raise KeyError(key)

    def __setitem__(self, key: Any, spec: ModelSpec) -> None:
        self.own[key] = spec

    def __delitem__(self, key: Any) -> None:
        del self.own[key]

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        seen: list[Callable[..., Any]] = []  # no set: a callable object may not be hashable
        for infer_func, _ in self._by_callable():
            if infer_func not in seen:  # several instances of a model may share one
                seen.append(infer_func)
        return iter(seen)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[*self.own.items(), *self.items()]})"

    def _by_callable(self) -> Iterator[tuple[Callable[..., Any], ModelSpec]]:
        yield from ((key, spec) for key, spec in self.own.items() if callable(key))
        yield from ((bound.infer_func, bound.spec) for bound in BOUND)


@dataclasses.dataclass
class TritonContext:
    """The context that `triton_context` passes to an inference callable.

    Attributes:
        model_configs: The specifications of this process's models by their inference callables, and that of the called
            model by its name; `model_config` is a shortcut to the latter.
        requests: The requests of the call, in the order of their rows. `sample` calls once per request,
            `group_by_keys` and `group_by_values` once per group.
    """

    model_configs: ModelConfigDict = dataclasses.field(default_factory=ModelConfigDict)
    requests: Requests = ()
    _rows: Sequence[int] | None = dataclasses.field(default=None, repr=False)
    _caller: Caller = dataclasses.field(default=(None, NO_BATCH), repr=False)

    def __post_init__(self) -> None:
        """Accepts a plain dictionary, for unit tests."""
        if not isinstance(self.model_configs, ModelConfigDict):
            self.model_configs = ModelConfigDict(self.model_configs)

    @property
    def model_config(self) -> ModelSpec:
        """The model's specification: its name, version, inputs, outputs, batching and more.

        Raises:
            PyTritonInvalidOperationError: The context was created by hand, without a model.
        """
        for spec in self.model_configs.own.values():
            return spec
        raise PyTritonInvalidOperationError("This context has no model: it does not come from a call by the server.")

    @property
    def parameters(self) -> list[dict[str, Any]]:
        """Request parameters and forwarded headers: one dictionary per request."""
        return [getattr(request, "parameters", None) or {} for request in self.requests]

    @property
    def rows(self) -> list[int]:
        """Number of rows of each request; empty if the model does not batch."""
        if self._rows is not None:
            return list(self._rows)
        if not self.model_config.batching:
            return []
        return [len(next(iter(request.values()))) if len(request) else 1 for request in self.requests]

    @property
    def row_parameters(self) -> list[dict[str, Any]]:
        """Request parameters per row: those of the request that the row belongs to."""
        pairs = zip(self.parameters, self.rows)
        return [parameters for parameters, rows in pairs for _ in range(rows)]

    def infer(self, model: str, inputs: Mapping[str, Array], **options: Unpack[CallOptions]) -> dict[str, Array]:
        """Sends a request to another model of the server, and waits for the response.

        Tensors go through shared memory, never over the network. The model may be a bound one, one of a model
        repository, or an ensemble.

        Args:
            model: The model's name.
            inputs: Arrays by name. If the model batches, their first dimension is the batch.
            **options: See `CallOptions`.

        Returns:
            The outputs by name: views of shared memory, valid for as long as they are referenced.

        Raises:
            PyTritonInferenceError: The server or the model reported an error or did not respond in time, or the
                request would deadlock.
            PyTritonInvalidOperationError: There is no call in progress, or this is a coroutine: use `ainfer` there.
            PyTritonBadParameterError: An input is not an array, or has a dtype that Triton lacks.

        Examples:
            >>> def shout(triton_context, text):
            ...     return triton_context.infer("Upper", {"text": text}, timeout_s=10)
        """
        client = self._client("infer", "ainfer")
        return client.infer(self._call(model, inputs, options), options.get("timeout_s")).check().outputs

    async def ainfer(self, model: str, inputs: Mapping[str, Array], **options: Unpack[CallOptions]) -> dict[str, Array]:
        """`infer` for coroutines: ``await triton_context.ainfer(...)``. Many calls may wait at the same time."""
        client = self._client("ainfer")
        reply = await client.ainfer(self._call(model, inputs, options), options.get("timeout_s"))
        return reply.check().outputs

    def stream(
        self, model: str, inputs: Mapping[str, Array], **options: Unpack[CallOptions]
    ) -> Generator[dict[str, Array], None, None]:
        """Sends a request to another model, decoupled or not, and yields its responses as they arrive.

        Closing the generator early cancels the request.

        Args:
            model: The model's name.
            inputs: Arrays by name.
            **options: See `CallOptions`; the timeout is for each response.

        Yields:
            The outputs of a response, by name.

        Raises:
            PyTritonInferenceError: See `infer`.
            PyTritonInvalidOperationError: See `infer`; use `astream` in coroutines.
            PyTritonBadParameterError: See `infer`.
        """
        client = self._client("stream", "astream")
        replies = client.stream(self._call(model, inputs, options), options.get("timeout_s"))
        try:
            for reply in replies:
                yield reply.check().outputs
        finally:
            replies.cancel()

    async def astream(
        self, model: str, inputs: Mapping[str, Array], **options: Unpack[CallOptions]
    ) -> AsyncGenerator[dict[str, Array], None]:
        """`stream` for coroutines: ``async for outputs in triton_context.astream(...)``."""
        client = self._client("astream")
        replies = client.astream(self._call(model, inputs, options), options.get("timeout_s"))
        try:
            async for reply in replies:
                yield reply.check().outputs
        finally:
            replies.cancel()

    def _of(self, requests: Requests, rows: Sequence[int] | None = None) -> TritonContext:
        """Returns the same context for other requests."""
        return TritonContext(self.model_configs, requests, rows, self._caller)

    def _client(self, name: str, for_coroutines: str | None = None) -> ServerClient:
        if for_coroutines is not None:
            import asyncio

            if asyncio._get_running_loop() is not None:
                raise PyTritonInvalidOperationError(
                    f"triton_context.{name} would block the event loop in which it is called: use {for_coroutines}"
                )
        client, _ = self._caller
        return client or current_client()

    def _call(self, model: str, inputs: Mapping[str, Array], options: CallOptions) -> InferenceCall:
        unknown = options.keys() - CallOptions.__annotations__.keys()
        if unknown:
            raise TypeError(
                f"requests have no option {min(unknown)!r}; they have {', '.join(CallOptions.__annotations__)}"
            )
        start, end = options.get("sequence_start"), options.get("sequence_end")
        version = options.get("version")
        return InferenceCall(
            model,
            inputs,
            version=-1 if version is None else version,
            outputs=options.get("requested_outputs"),
            request_id=options.get("request_id", ""),
            correlation_id=options.get("sequence_id", 0),
            flags=(SEQUENCE_START if start else 0) | (SEQUENCE_END if end else 0),
            parameters=options.get("parameters") or {},
            batch=self._caller[1],
        )


def current_context(what: str) -> TritonContext:
    """Returns the context of the call in progress.

    Args:
        what: The name of the caller, for the error message.

    Raises:
        PyTritonContextError: There is no call in progress; a test may set ``MODEL`` itself.
    """
    try:
        spec = MODEL.get()
    except LookupError:
        raise PyTritonContextError(
            f"{what} needs the model's configuration, which is known only during a call: bind the function "
            "with Triton.bind and send it a request"
        ) from None
    requests, rows = CALL_FRAME.get()
    if type(requests) is WholeBatch:
        requests = requests.requests()
    return TritonContext(ModelConfigDict({spec.name: spec}), requests, rows, CURRENT_CALLER.get())
