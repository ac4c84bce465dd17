"""Sends large tensors through Triton's system shared-memory extension instead of the socket.

A region is a block of shared memory that is registered with one server. Its name is removed as soon as the server has
opened it, so that nothing stays in ``/dev/shm``, however the client exits. Regions are reused, because registering one
takes longer than filling it.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pytriton.client.core.failures import is_response, server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.requests import EncodedRequest
from pytriton.client.core.sansio import Sleep, Steps
from pytriton.client.core.tensors import InferInput, InferRequestedOutput
from pytriton.client.exceptions import Failure, PyTritonClientError, PyTritonClientInferenceServerError
from pytriton.model_config.datatypes import datatype_by_name
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

MIN_BYTES = 64 * 1024
"""Smaller tensors are sent in the request, which takes no longer."""

ABANDONED_S = 10.0
"""How long after a timeout the client tries to reclaim a request's regions."""

_OUTPUT = re.compile(r"for output '(.*)' \(")
_FOLDER = Path("/dev/shm")
_ALIGNMENT = 64
_PAGE = 4096
_MAX_FREE_BYTES = 512 * 1024 * 1024
_MAX_SIGNATURES = 256
_CLOSE_TIMEOUT_S = 1.0
_CLOSE_PAUSE_S = 0.05


class Region:
    """A block of shared memory.

    Args:
        size: Size in bytes.

    Raises:
        PyTritonClientError: ``/dev/shm`` is full.
    """

    def __init__(self, size: int) -> None:
        """Allocates the memory, so that no later access can fail."""
        self.name = f"pytriton-{os.getpid()}-{uuid.uuid4().hex}"
        self.size = size
        self.key = f"/{self.name}"
        self._path: Path | None = _FOLDER / self.name
        file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            os.posix_fallocate(file, 0, size)
            self.memory = mmap.mmap(file, size)
        except OSError as error:
            self.unlink()
            raise PyTritonClientError(
                f"There is no room for {size} bytes of shared memory in {_FOLDER} ({error.strerror}); make it larger, "
                "or use shared_memory=False."
            ) from error
        finally:
            os.close(file)

    def unlink(self) -> None:
        """Removes its name; processes that have opened it keep it."""
        path, self._path = self._path, None
        if path is not None:
            path.unlink(missing_ok=True)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.unlink()


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a region. Arrays refer to it as their base; when it is deleted, the region can be reused."""

    __slots__ = ("_pool", "_region")
    _region: Region
    _pool: RegionPool

    def __del__(self) -> None:
        region = getattr(self, "_region", None)  # slices of a lease have its class, but are not leases
        if region is not None:
            self._pool.give_back(region)


# The error of servers from 2.69 on that were started without --allow-client-shm.
_IS_OFF = re.compile(r"disabled|disallowed|not (?:allowed|enabled|supported|permitted)|allow.client.shm", re.IGNORECASE)


class RegionServer(Protocol):
    """A server that regions are registered with; see `pytriton.client.core.servers.Server`."""

    def call(self, method: str, timeout_s: float, *args: Any) -> Callable[[], Any]:
        """Returns a step that calls a method of Triton's API."""


class RegionPool:
    """The pool of regions that are registered with one server."""

    def __init__(self) -> None:
        self._free: list[Region] = []  # the most recently used one is last
        self._returned: deque[Region] = deque()  # without a lock: leases may be deleted at any point
        self._abandoned: deque[tuple[float, str]] = deque()  # when to try to unregister each
        self._known: set[str] = set()
        self._lock = threading.Lock()

    def lend(self, server: RegionServer, size: int, timeout_s: float) -> Steps[Region]:
        """Takes a region, or creates one and registers it with the server.

        Args:
            server: The server.
            size: The minimum size in bytes.
            timeout_s: How long registration may take.

        Raises:
            PyTritonClientInferenceServerError: The server cannot open it, or requires a token.
        """
        region, unwanted = self._take(size)
        for name in unwanted:
            yield from self._forget(server, name, timeout_s)
        if region is not None:
            return region
        region = Region(_rounded(size))
        self._known.add(region.name)  # first: whether registration succeeded may remain unknown
        try:
            yield server.call("register_system_shared_memory", timeout_s, region.name, region.key, region.size)
        except PyTritonClientInferenceServerError as error:
            if error.failure is not Failure.LOST:
                self._known.discard(region.name)
            if error.failure is Failure.RESTRICTED:
                message = f"{error.message.rstrip('.')}; shared_memory=True needs it."
                raise server_error(message, Failure.RESTRICTED) from None
            if _IS_OFF.search(error.message):
                raise server_error(
                    f"{error.message.rstrip('.')}: the server does not accept clients' shared memory; start it with "
                    "TritonConfig(allow_client_shm=True), or use shared_memory=False.",
                    Failure.REFUSED,
                ) from None
            if "shared memory" not in error.message.lower() and "shm" not in error.message:
                raise
            raise server_error(
                f"{error.message.rstrip('.')}: the server cannot open the client's shared memory; is it on this host, "
                "under the same user, and with the same /dev/shm? Otherwise, use shared_memory=False.",
                Failure.REFUSED,
            ) from None
        finally:
            region.unlink()
        return region

    def give_back(self, region: Region) -> None:
        """Returns a region to the pool."""
        self._returned.append(region)

    def abandon(self, region: Region) -> None:
        """Discards a region that the server may still be using, after a request was abandoned."""
        self._abandoned.append((time.monotonic() + ABANDONED_S, region.name))

    def forget_all(self) -> None:
        """Forgets all regions, because the server was restarted."""
        with self._lock:
            self._free.clear()
            self._returned.clear()
            self._abandoned.clear()
            self._known.clear()

    def close(self, server: RegionServer, sleep: Sleep) -> Steps[None]:
        """Unregisters all regions; arrays in them stay valid.

        Args:
            server: The server.
            sleep: How to pause, in seconds, while the server is using some.
        """
        deadline = time.monotonic() + _CLOSE_TIMEOUT_S
        while True:
            try:
                for name in list(self._known):
                    yield from self._forget(server, name, _CLOSE_TIMEOUT_S)
            except PyTritonClientError:
                break  # the server has exited, and its regions are gone
            if not self._known or time.monotonic() > deadline:
                break
            yield functools.partial(sleep, _CLOSE_PAUSE_S)
        self.forget_all()

    def _take(self, size: int) -> tuple[Region | None, list[str]]:
        """Takes the smallest suitable free region; also returns the names of regions to unregister."""
        with self._lock:
            while self._returned:
                region = self._returned.popleft()
                if region.name in self._known:
                    self._free.append(region)
            fitting = [region for region in self._free if size <= region.size <= 2 * _rounded(size)]
            taken = min(fitting, key=lambda region: region.size, default=None)
            if taken is not None:
                self._free.remove(taken)
                return taken, []
            unwanted = []
            while self._abandoned and self._abandoned[0][0] < time.monotonic():
                unwanted.append(self._abandoned.popleft()[1])
            while self._free and sum(region.size for region in self._free) + size > _MAX_FREE_BYTES:
                unwanted.append(self._free.pop(0).name)
            return None, unwanted

    def _forget(self, server: RegionServer, name: str, timeout_s: float) -> Steps[None]:
        """Unregisters a region, or tries again later if the server is using it."""
        try:
            yield server.call("unregister_system_shared_memory", timeout_s, name)
        except PyTritonClientInferenceServerError as error:
            if not is_response(error):
                raise
            self._abandoned.append((time.monotonic() + ABANDONED_S, name))
        else:
            self._known.discard(name)


class OutputSizes:
    """The sizes of a model's outputs, as far as they are known in advance.

    Args:
        config: The model.
    """

    def __init__(self, config: TritonModelConfig) -> None:
        """Starts with the outputs whose shapes are fixed."""
        self._config = config
        self._seen: dict[object, dict[str, int]] = {}
        self._varying: set[str] = set()

    def expected(self, request: EncodedRequest) -> dict[str, int]:
        """Returns the sizes of the outputs that are large enough for shared memory, by name.

        Args:
            request: The request; one with inputs of the same shapes is expected to have outputs of the same size.
        """
        seen = self._seen.get(_signature(request), {})
        sizes = {}
        for spec in self._config.outputs:
            if spec.name in self._varying or (request.outputs is not None and spec.name not in request.outputs):
                continue
            size = seen.get(spec.name) if -1 in spec.shape else _nbytes(spec, request.rows)
            if size is not None and size >= MIN_BYTES and spec.datatype.itemsize:
                sizes[spec.name] = size
        return sizes

    def learn(self, request: EncodedRequest, response: Mapping[str, Array]) -> None:
        """Records the sizes of a response."""
        if len(self._seen) >= _MAX_SIGNATURES:
            self._seen.pop(next(iter(self._seen)), None)
        self._seen[_signature(request)] = {name: array.nbytes for name, array in response.items()}

    def outgrown(self, error: PyTritonClientInferenceServerError, sizes: Mapping[str, int]) -> None:
        """Records that the size of an output does not depend only on the shapes of the inputs.

        Args:
            error: The server's error.
            sizes: The expected sizes.
        """
        named = _OUTPUT.search(error.message)
        self._varying.update({named[1]} & sizes.keys() if named else sizes)


class RegionLease:
    """The regions of one request; a context manager that returns them to the pool.

    Args:
        server: The server that the request goes to.
        pool: The regions of that server.

    Attributes:
        is_used: Whether the server may still be using the regions, so that they cannot be reused.
    """

    def __init__(self, server: RegionServer, pool: RegionPool) -> None:
        self.is_used = False
        self._server = server
        self._pool = pool
        self._inputs: Region | None = None
        self._outputs: Region | None = None
        self._layout: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> RegionLease:
        return self

    def __exit__(self, *_: object) -> None:
        for region in (self._inputs, self._outputs):
            if region is not None:
                (self._pool.abandon if self.is_used else self._pool.give_back)(region)

    def take_inputs(self, request: EncodedRequest, timeout_s: float) -> Steps[dict[str, InferInput]]:
        """Copies large inputs into shared memory.

        Returns:
            The inputs in shared memory, by name.
        """
        large = [
            (spec, array) for spec, array in request.arrays if array.nbytes >= MIN_BYTES and spec.datatype.itemsize
        ]
        if not large:
            return {}
        layout, size = _laid_out({spec.name: array.nbytes for spec, array in large})
        self._inputs = yield from self._pool.lend(self._server, size, timeout_s)
        tensors = {}
        for spec, array in large:
            offset, nbytes = layout[spec.name]
            np.copyto(np.ndarray(array.shape, array.dtype, self._inputs.memory, offset), array)
            tensor = InferInput(spec.name, array.shape, spec.datatype.name)
            tensors[spec.name] = tensor.set_shared_memory(self._inputs.name, nbytes, offset)
        return tensors

    def take_outputs(
        self, names: Sequence[str], sizes: Mapping[str, int], timeout_s: float
    ) -> Steps[list[InferRequestedOutput] | None]:
        """Allocates shared memory for large outputs.

        Args:
            names: The requested outputs.
            sizes: The sizes in bytes of those that are expected to be large.
            timeout_s: How long it may take.

        Returns:
            The requested outputs; None for the default.
        """
        if not sizes:
            return None
        self._layout, size = _laid_out(sizes)
        self._outputs = yield from self._pool.lend(self._server, size, timeout_s)
        wanted = []
        for name in names:
            output = InferRequestedOutput(name)
            if name in self._layout:
                offset, nbytes = self._layout[name]
                output.set_shared_memory(self._outputs.name, nbytes, offset)
            wanted.append(output)
        return wanted

    def outputs(self) -> dict[str, Any]:
        """Returns functions that read the outputs in shared memory, given datatype and shape, by name.

        The region is reused when the last of their arrays is deleted.
        """
        region, self._outputs = self._outputs, None
        if region is None:
            return {}
        lease = np.ndarray.__new__(_Lease, (region.size,), np.uint8, region.memory)
        lease._region, lease._pool = region, self._pool

        def reader(offset: int) -> Any:
            def read(datatype: str, shape: Sequence[int]) -> Array:
                array: Array = np.ndarray(tuple(shape), datatype_by_name(datatype).numpy_dtype, lease, offset)
                array.flags.writeable = False  # like those received over the socket
                return array

            return read

        return {name: reader(offset) for name, (offset, _) in self._layout.items()}


def is_forgotten(error: PyTritonClientInferenceServerError) -> bool:
    """Returns whether the server no longer knows a region; nothing was executed."""
    return error.failure is Failure.REFUSED and "Unable to find shared memory region" in error.message


def is_outgrown(error: PyTritonClientInferenceServerError) -> bool:
    """Returns whether an output was larger than expected."""
    return error.failure is Failure.REFUSED and "shared memory size specified with the request" in error.message


def _signature(request: EncodedRequest) -> object:
    return tuple((spec.name, array.shape) for spec, array in request.arrays)


def _nbytes(spec: TensorSpec, rows: int) -> int:
    return math.prod(spec.shape) * spec.datatype.itemsize * max(rows, 1)


def _laid_out(sizes: Mapping[str, int]) -> tuple[dict[str, tuple[int, int]], int]:
    """Returns offset and size of each tensor in a region, and the size of the region."""
    layout = {}
    end = 0
    for name, nbytes in sizes.items():
        layout[name] = (end, nbytes)
        end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return layout, end


def _rounded(size: int) -> int:
    """Rounds a size up by at most a quarter, so that regions can be reused."""
    step = max(_PAGE, 1 << max(0, size.bit_length() - 3))
    return -(-size // step) * step
