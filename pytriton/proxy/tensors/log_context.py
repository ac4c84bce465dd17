"""Adds the batch that is being served to log records."""

from __future__ import annotations

from contextvars import Token
from typing import Any

from pytriton import json_logs
from pytriton.json_logs import CONTEXT, Context
from pytriton.proxy.tensors.batch import Batch


class LogContext:
    """Adds a batch to the log records of this thread or task, in a ``with`` block.

    Ids are decoded when a record needs them. Tasks and threads that outlive the block, with a copy of its context, do
    not keep the batch in memory.

    Args:
        batch: The batch.
    """

    __slots__ = ("_batch", "_model", "_token", "_version")

    def __init__(self, batch: Batch) -> None:
        spec = batch.signature.spec
        self._model, self._version = spec.name, spec.version
        self._batch: Batch | None = batch
        self._token: Token[Context | None] | None = None

    def __enter__(self) -> None:
        self._token = CONTEXT.set(self)

    def __exit__(self, *_: object) -> None:
        self._batch = None
        assert self._token is not None
        CONTEXT.reset(self._token)

    def fields(self) -> dict[str, Any]:
        """See `pytriton.json_logs.Context`."""
        fields: dict[str, Any] = {"model": self._model, "model_version": self._version}
        batch = self._batch
        if batch is None:
            return fields
        if batch.spans is not None:  # for records about a call that has ended; the current span takes precedence
            fields.update(json_logs.span_fields(batch.spans.call))
        ids = [batch.metadata(request).id for request in range(batch.request_count)]
        if len(ids) > 1 and any(ids):
            fields["request_ids"] = ids
        elif ids[0]:
            fields["request_id"] = ids[0]
        return fields
