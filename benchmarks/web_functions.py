"""The functions that the contenders of `gateway.py` serve, and the requests. Needs only NumPy."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import numpy as np

TINY = "tiny"
IMAGE = "image"
STREAM = "stream"

IMAGE_SHAPE = (3, 224, 224)
TOKENS = 200

JSON = "application/json"
NPY = "application/x-npy"
EVENTS = "text/event-stream"


def path(name: str) -> str:
    """Returns the path at which each contender serves a function."""
    return f"/v1/models/{name}"


def double(x: Any) -> Any:
    """Computes the response to a request, or to a batch of them."""
    return x * 2


def tokens(count: int) -> Iterator[str]:
    """Generates a text, as a language model does."""
    for number in range(count):
        yield f"token{number}"


def from_npy(body: bytes) -> Any:
    """Decodes an array."""
    return np.load(io.BytesIO(body), allow_pickle=False)


def to_npy(array: Any) -> bytes:
    """Encodes an array."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def from_base64(text: str) -> Any:
    """Decodes an image from JSON."""
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(IMAGE_SHAPE)


def to_base64(array: Any) -> str:
    """Encodes an image for JSON."""
    return base64.b64encode(array).decode()


def event_of(token: str) -> str:
    """Encodes a token as a server-sent event."""
    return f"data: {json.dumps({'token': token})}\n\n"


def request(name: str, contender: str, count: int = TOKENS) -> tuple[bytes, str]:
    """Returns the body of a request, and its type."""
    if name == TINY:
        return json.dumps({"x": [number / 4 for number in range(16)]}).encode(), JSON
    if name == STREAM:
        return json.dumps({"count": count}).encode(), JSON
    array = np.random.default_rng(0).random(IMAGE_SHAPE, dtype=np.float32)
    if contender in ("bentoml", "litserve"):  # they take no .npy
        return json.dumps({"tensor": to_base64(array)}).encode(), JSON
    return to_npy(array), NPY
