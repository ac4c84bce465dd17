"""Inference callables that send their batches to actors, in the process that serves the model."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, ClassVar

import ray
import ray.exceptions

from pytriton.proxy.tensors.batch import batch_of
from pytriton.proxy.types import Request
from pytriton.ray.cluster import result_of
from pytriton.ray.instances.messages import Loaded, SentBatch, packed, received, sent_batch, unpacked
from pytriton.ray.instances.routing import ActorGroup, RemoteActor, Route
from pytriton.ray.instances.spec import InstanceSpec

_POLL_S = 0.1  # interval of checks for cancelled requests of a plain function

_numbers = itertools.count(1)


def infer_func_of(loaded: Loaded, spec: InstanceSpec, group: ActorGroup) -> Callable[..., Any]:
    """Returns the inference callable of an instance, of the same kind as the one in its actor."""
    if not spec.model.decoupled:
        return (_Coroutine if loaded.is_async else _Function)(spec, group)
    if loaded.is_async:
        return _AsyncStream(spec, group)
    return (_Stream if loaded.yields else _FunctionOfStream)(spec, group)


class _Remote:
    """The common base of all of them."""

    def __init__(self, spec: InstanceSpec, group: ActorGroup) -> None:
        self._spec = spec
        self._group = group

    def _route(self) -> Route:
        return Route(self._group, self._spec.number, self._spec.retries)


class _Call:
    """A call of an actor: counts it, and forwards cancellations while it lasts."""

    def __init__(self, actor: RemoteActor, sent: SentBatch, requests: Sequence[Request]) -> None:
        self._actor = actor
        self._sent = sent
        self._requests = requests
        self._removals: list[Callable[[], None]] = []
        self._cancelled: set[int] = set()

    def __enter__(self) -> _Call:
        self._actor.in_flight += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._actor.in_flight -= 1
        for remove in self._removals:
            remove()

    def watch(self) -> _Call:
        """Forwards cancellations that the batch reports."""
        for number, request in enumerate(self._requests):
            self._removals.append(request._on_cancel(lambda number=number: self.cancel([number])))  # type: ignore[misc]
        return self

    def poll(self) -> None:
        """Forwards cancellations that the batch has flags for."""
        flags = batch_of(self._requests).cancelled()
        new = [number for number, flag in enumerate(flags) if flag and number not in self._cancelled]
        if new:
            self.cancel(new)

    def cancel(self, requests: Sequence[int] | None = None) -> None:
        """Cancels requests of the batch, all by default."""
        numbers = list(range(len(self._requests)) if requests is None else requests)
        self._cancelled.update(numbers)
        with contextlib.suppress(Exception):  # Ray has been shut down, and the actor has ended
            self._actor.handle.cancel.remote(self._sent.number, numbers)


class _Function(_Remote):
    """Sends one batch at a time, and waits."""

    _self_joins_requests: ClassVar[bool] = True  # it accepts a `WholeBatch`

    def __call__(self, requests: Sequence[Request]) -> Any:
        sent = sent_batch(next(_numbers), requests)
        route = self._route()
        while True:
            actor = route.first() or route.next()
            with _Call(actor, sent, requests) as call:
                try:
                    reference = actor.handle.infer.remote(packed(sent))
                    while True:
                        try:
                            reply = result_of(reference, _POLL_S)
                            break
                        except ray.exceptions.GetTimeoutError:
                            call.poll()
                except ray.exceptions.RayError as error:
                    route.lost(actor, error)
                    continue
            return received(unpacked(reply))


class _Coroutine(_Remote):
    """Sends many batches at a time."""

    async def __call__(self, requests: Sequence[Request]) -> Any:
        sent = sent_batch(next(_numbers), requests)
        route = self._route()
        while True:
            actor = route.first()
            if actor is None:
                actor = await asyncio.to_thread(route.next)
            with _Call(actor, sent, requests).watch() as call:
                try:
                    reply = await actor.handle.infer.remote(packed(sent))
                except asyncio.CancelledError:
                    call.cancel()
                    raise
                except ray.exceptions.RayError as error:
                    route.lost(actor, error)
                    continue
            return received(unpacked(reply))


class _AsyncStream(_Remote):
    """Sends many batches at a time, and forwards the steps that the actor yields."""

    async def __call__(self, requests: Sequence[Request]) -> AsyncIterator[Any]:
        sent = sent_batch(next(_numbers), requests)
        route = self._route()
        while True:
            actor = route.first()
            if actor is None:
                actor = await asyncio.to_thread(route.next)
            has_begun = False
            with _Call(actor, sent, requests).watch() as call:
                try:
                    async for reference in actor.handle.stream.options(num_returns="streaming").remote(packed(sent)):
                        reply = received(unpacked(await reference))
                        has_begun = True
                        yield reply
                    return
                except (asyncio.CancelledError, GeneratorExit):
                    call.cancel()
                    raise
                except ray.exceptions.RayError as error:
                    route.lost(actor, error, has_begun=has_begun)


class _FunctionOfStream(_Remote):
    """Sends one batch at a time, and forwards the steps that the actor yields."""

    def __call__(self, requests: Sequence[Request]) -> Iterator[Any]:
        return self._stream(requests)

    def _stream(self, requests: Sequence[Request]) -> Iterator[Any]:
        sent = sent_batch(next(_numbers), requests)
        route = self._route()
        while True:
            actor = route.first() or route.next()
            has_begun = False
            with _Call(actor, sent, requests).watch() as call:
                try:
                    for reference in actor.handle.stream.options(num_returns="streaming").remote(packed(sent)):
                        reply = received(unpacked(result_of(reference)))
                        has_begun = True
                        yield reply
                    return
                except GeneratorExit:
                    call.cancel()
                    raise
                except ray.exceptions.RayError as error:
                    route.lost(actor, error, has_begun=has_begun)


class _Stream(_FunctionOfStream):
    """Does so in each of several threads."""

    def __call__(self, requests: Sequence[Request]) -> Iterator[Any]:
        yield from self._stream(requests)
