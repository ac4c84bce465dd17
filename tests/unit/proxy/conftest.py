"""Batches as they come from the server, without a server."""

from __future__ import annotations

import os

import numpy as np
import pytest

from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.datatypes import CODE_BY_DTYPE
from pytriton.model_config.model_spec import ModelSpec
from pytriton.proxy.arena import Arena, PeerArena
from pytriton.proxy.batch import Batch
from pytriton.proxy.protocol import (
    ABSENT,
    BatchMessage,
    Column,
    MessageReader,
    aligned,
    decode_result,
    encode_batch,
)
from pytriton.proxy.protocol import Tensor as Place
from pytriton.proxy.signature import Signature

CAPACITY = 1 << 26
BYTES_CODE = 13


def packed(array):
    """An array's bytes as they lie in shared memory."""
    if array.dtype != object:
        return np.ascontiguousarray(array).tobytes()
    items = array.ravel().tolist()
    return np.array([len(item) for item in items], np.uint32).tobytes() + b"".join(items)


class Wire:
    """Both sides of a connection: lays batches down as the backend does, and reads results as it does.

    Args:
        inputs: A model's inputs.
        outputs: Its outputs.
        config: Its settings.
    """

    def __init__(self, inputs, outputs, config=None, strict=False):
        self.signature = Signature(ModelSpec.create("m", inputs, outputs, config=config, strict=strict))
        self.arena = Arena(CAPACITY)
        self.peer = PeerArena(os.dup(self.arena.fd))
        self.results = Arena(CAPACITY)

    def close(self):
        self.arena.close()
        self.results.close()

    def lay_down(self, requests, details=()):
        """Writes requests (dictionaries of arrays) into the arena, and returns where their message lies."""
        datas = bytearray()
        columns = []
        for position, name in enumerate(self.signature.inputs):
            arrays = [request.get(name) for request in requests]
            present = [array for array in arrays if array is not None]
            if not present:
                continue
            stacked = len(present) == len(arrays) and (
                len(arrays) == 1 or (self.signature.batching and len({array.shape[1:] for array in arrays}) == 1)
            )
            groups = [arrays] if stacked else [[array] for array in arrays]
            tensors = []
            for group in groups:
                if group[0] is None:
                    tensors.append(ABSENT)
                    continue
                whole = np.concatenate(group) if len(group) > 1 else group[0]
                data = packed(whole)
                tensors.append(Place(len(datas), len(data), whole.shape or (1,)))
                datas += data.ljust(aligned(len(data)), b"\0")
            columns.append(Column(position, CODE_BY_DTYPE[present[0].dtype], stacked, tensors))
        rows = [len(next(iter(request.values()))) for request in requests] if self.signature.batching else []
        writer = encode_batch(BatchMessage(len(requests), rows, columns, list(details)))
        size = writer.head_size() + len(datas)
        offset = self.arena.allocate(size)
        writer.write_to(self.arena.memory, offset)
        start = offset + writer.head_size()
        self.arena.memory[start : start + len(datas)] = bytes(datas)
        return offset, size

    def batch(self, *requests, details=()):
        """Requests as the worker gets them."""
        return Batch(self.peer.lease(*self.lay_down(requests, details)), self.signature)

    def read_result(self, memory, offset, size, rows=()):
        """A result's failures, and its outputs by name: a list with the array (or None) of each request."""
        reader = MessageReader(memoryview(memory)[offset : offset + size], 0, size)
        result = decode_result(reader)
        outputs = {}
        for column in result.columns:
            output = self.signature.outputs[column.position]
            arrays = [
                None if tensor.offset < 0 else self._array(memory, offset + reader.data_offset, tensor, output)
                for tensor in column.tensors
            ]
            if column.stacked and result.request_count > 1:
                arrays = np.split(arrays[0], np.cumsum(rows)[:-1])
            outputs[output.name] = arrays
        return result, outputs

    @staticmethod
    def _array(memory, data, tensor, output):
        raw = bytes(memory[data + tensor.offset : data + tensor.offset + tensor.size])
        if output.code != BYTES_CODE:
            return np.frombuffer(raw, output.dtype).reshape(tensor.shape)
        count = int(np.prod(tensor.shape))
        ends = np.cumsum(np.frombuffer(raw, np.uint32, count)).tolist()
        items = np.empty(count, object)
        items[:] = [raw[4 * count :][start:end] for start, end in zip([0, *ends], ends, strict=False)]
        return items.reshape(tensor.shape)


@pytest.fixture
def wire():
    """Makes connections for models."""
    made = []

    def make(inputs=None, outputs=None, **arguments):
        floats = {"shape": (-1,), "dtype": np.float32}
        inputs = inputs or [Tensor(name="x", **floats), Tensor(name="w", **floats, optional=True)]
        outputs = outputs or [Tensor(name="y", **floats), Tensor(name="z", **floats)]
        made.append(Wire(inputs, outputs, **arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def plain_wire(wire):
    """A connection for a model without batching."""
    return wire(config=ModelConfig(batching=False))
