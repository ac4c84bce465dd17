"""Splits batches that are larger than the model accepts, and joins the outputs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np

from pytriton.client.core.failures import server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest
from pytriton.client.exceptions import Failure, PyTritonClientValueError

MAX_PARTS_IN_FLIGHT = 16


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
    responses: list[dict[str, Array]] = [{}] * len(slices)
    waiting = iter(enumerate(slices))

    async def send_parts() -> None:
        for index, (start, stop) in waiting:  # each takes the next part
            responses[index] = await infer(request.slice(start, stop))
            advance(stop - start)

    with _progress_bar(request.rows, request.progress) as advance:
        senders = [asyncio.ensure_future(send_parts()) for _ in range(min(MAX_PARTS_IN_FLIGHT, len(slices)))]
        try:
            await asyncio.gather(*senders)
        finally:
            for sender in senders:
                sender.cancel()
            await asyncio.gather(*senders, return_exceptions=True)
    return _joined(responses, slices)


def _joined(responses: list[dict[str, Array]], slices: list[tuple[int, int]]) -> dict[str, Array]:
    joined = {}
    for name in responses[0]:
        arrays = [response[name] for response in responses]
        for array, (start, stop) in zip(arrays, slices, strict=True):
            if array.shape[:1] != (stop - start,) or array.shape[1:] != arrays[0].shape[1:]:
                raise server_error(
                    f"The parts of output {name!r} cannot be joined: rows {start} to {stop} have shape {array.shape}, "
                    f"and the first ones {arrays[0].shape}; send batches of equal output shapes.",
                    Failure.REFUSED,
                )
        joined[name] = np.concatenate(arrays)
    return joined


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
