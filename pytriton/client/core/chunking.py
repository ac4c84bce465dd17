"""Splits batches that are larger than the model accepts, and joins the outputs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pytriton.client.core.failures import server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest
from pytriton.client.exceptions import Failure, PyTritonClientValueError

MAX_PARTS_IN_FLIGHT = 16

_RequestT = TypeVar("_RequestT")
_ResponseT = TypeVar("_ResponseT")


async def infer_in_parts(
    request: EncodedRequest,
    rows: int,
    infer: Callable[[EncodedRequest], Awaitable[dict[str, Array]]],
) -> dict[str, Array]:
    """Sends a batch in parts, several at a time, and joins the responses. The first error cancels the rest.

    Args:
        request: The batch.
        rows: The maximum number of rows of a part.
        infer: Sends a part.
    """
    slices = [(start, min(start + rows, request.rows)) for start in range(0, request.rows, rows)]

    async def send(part: tuple[int, int]) -> dict[str, Array]:
        response = await infer(request.slice(*part))
        advance(part[1] - part[0])
        return response

    with _progress_bar(request.rows, request.progress) as advance:
        responses = await send_several(slices, send)
    return joined(responses, slices)


async def send_several(
    requests: Sequence[_RequestT], send: Callable[[_RequestT], Awaitable[_ResponseT]]
) -> list[_ResponseT]:
    """Sends requests, several at a time, and returns the responses in order. The first error cancels the rest.

    Args:
        requests: The requests.
        send: Sends one.
    """
    responses: dict[int, _ResponseT] = {}
    waiting = iter(enumerate(requests))

    async def send_next() -> None:
        for index, request in waiting:  # shared: each worker takes the next one
            responses[index] = await send(request)

    senders = [asyncio.ensure_future(send_next()) for _ in range(min(MAX_PARTS_IN_FLIGHT, len(requests)))]
    try:
        await asyncio.gather(*senders)
    finally:
        for sender in senders:
            sender.cancel()
        await asyncio.gather(*senders, return_exceptions=True)
    return [responses[index] for index in range(len(requests))]


def joined(responses: Sequence[Mapping[str, Array]], slices: Sequence[tuple[int, int]]) -> dict[str, Array]:
    """Joins the responses to the parts of a batch.

    Args:
        responses: Outputs by name, for each part.
        slices: The first row of each part, and the row after its last.

    Raises:
        PyTritonClientInferenceServerError: An output's parts have different shapes.
    """
    whole = {}
    for name in responses[0]:
        arrays = [response[name] for response in responses]
        for array, (start, stop) in zip(arrays, slices, strict=True):
            if array.shape[:1] != (stop - start,) or array.shape[1:] != arrays[0].shape[1:]:
                raise server_error(
                    f"The parts of output {name!r} cannot be joined: rows {start} to {stop} have shape {array.shape}, "
                    f"and the first ones {arrays[0].shape}; send batches of equal output shapes.",
                    Failure.REFUSED,
                )
        whole[name] = np.concatenate(arrays)
    return whole


@contextlib.contextmanager
def _progress_bar(total: int, shown: bool) -> Iterator[Callable[[int], Any]]:
    if not shown:
        yield lambda rows: None
        return
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise PyTritonClientValueError(
            "progress=True needs the package tqdm, which is not installed; run `pip install 'pytriton[progress]'`."
        ) from error
    with tqdm(total=total, unit="row") as bar:
        yield bar.update
