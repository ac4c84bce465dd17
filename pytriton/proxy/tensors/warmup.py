"""The warm-up of a model instance: batches with the declared data instead of the server's."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton.model_config.warmup import warmup_inputs
from pytriton.proxy.tensors.batch import Batch
from pytriton.proxy.tensors.signature import Signature
from pytriton.proxy.transport.arena import Lease
from pytriton.proxy.types import Array


class Warmup:
    """The batches of one model instance's warm-up, in the order of ``ModelConfig.model_warmup``.

    Triton repeats one sample within a batch, and requires all inputs. So the server sends placeholders.

    Args:
        signature: The model's declaration.
    """

    def __init__(self, signature: Signature) -> None:
        self._signature = signature
        warmups = signature.spec.config.model_warmup or ()
        self._left = (warmup for warmup in warmups for _ in range(max(int(warmup.count), 1)))

    def next_batch(self, lease: Lease) -> Batch:
        """Returns the next batch, with the data that its warm-up declares.

        Args:
            lease: The block with the server's batch, which is used if the model declares no warm-up.
        """
        warmup = next(self._left, None)
        if warmup is None:
            return Batch(lease, self._signature)
        batch = WarmupBatch(lease, self._signature)
        batch.hold(warmup_inputs(warmup, batch.request_count, self._signature.batching))
        return batch


class WarmupBatch(Batch):
    """A batch with other arrays than those in shared memory."""

    __slots__ = ()

    def hold(self, inputs: dict[str, Array]) -> None:
        """Sets the inputs, each as one array over all requests."""
        self._stacked = inputs

    def offset_of(self, arrays: Sequence[Array]) -> int | None:
        """Returns None: no array is in the batch's memory."""
        return None
