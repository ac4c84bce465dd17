"""Forms with files, as browsers and ``curl -F`` send them: ``multipart/form-data``."""

from __future__ import annotations

import asyncio
import http
import logging
import re
from collections.abc import AsyncGenerator
from typing import Any

from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from pytriton.gateway import npy, offload
from pytriton.gateway.errors import RequestError, misfit
from pytriton.gateway.json_tensors import Samples, parse, samples_of, shown
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # otherwise clients could fill the log

MEDIA_TYPE = "multipart/form-data"
_MAX_PARTS = 1000
_SMALL = 1 << 16  # bytes; at worst, each of them is parsed on its own
_BOUNDARY = re.compile(r""";\s*boundary=("?)([\w'()+,./:=? -]{0,69}[\w'()+,./:=?-])\1\s*(?:;|$)""", re.ASCII | re.I)


async def read(config: TritonModelConfig, content_type: str, body: bytes, max_samples: int) -> Samples:
    """Reads the inputs of a sample by their names: a file is bytes or ``.npy``, other fields are text or JSON.

    Args:
        config: The model.
        content_type: The header, which has the boundary of the parts.
        body: The body, whose size has been checked.
        max_samples: The maximum number of samples.

    Raises:
        RequestError: It is not a form, or a field does not fit its input.
    """
    if len(body) <= _SMALL:
        return await _read(config, content_type, body, max_samples)
    return await offload.run_in_thread(_read_in_thread, config, content_type, body, max_samples)


def _read_in_thread(config: TritonModelConfig, content_type: str, body: bytes, max_samples: int) -> Samples:
    return asyncio.run(_read(config, content_type, body, max_samples))


async def _read(config: TritonModelConfig, content_type: str, body: bytes, max_samples: int) -> Samples:
    async def stream() -> AsyncGenerator[bytes, None]:
        yield body

    parser = MultiPartParser(
        Headers({"content-type": _with_boundary_only(content_type)}),
        stream(),
        max_files=_MAX_PARTS,
        max_fields=_MAX_PARTS,
        max_part_size=max(1, len(body)),
    )
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError) as error:
        message = f"The body is not a valid form: {getattr(error, 'message', error)}."
        raise RequestError(http.HTTPStatus.BAD_REQUEST, message) from error
    specs = {spec.name: spec for spec in config.inputs}
    sample: dict[str, Any] = {}
    try:
        for name in dict.fromkeys(form):
            values = [await _value(specs.get(name), name, part) for part in form.getlist(name)]
            sample[name] = values[0] if len(values) == 1 else values
    finally:
        await form.close()
    return samples_of(config, sample, max_samples)


def _with_boundary_only(content_type: str) -> str:
    """Returns the header without other parameters: with ``charset``, clients would choose one of Python's codecs.

    Some of these take quadratic time, and text in others cannot be encoded as UTF-8.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        message = (
            f"The content type of the form, {shown(content_type)}, has no valid boundary: "
            f"send '{MEDIA_TYPE}; boundary=…', with the 1 to 70 characters between the parts."
        )
        raise RequestError(http.HTTPStatus.BAD_REQUEST, message)
    return f'{MEDIA_TYPE}; boundary="{found[2]}"'


async def _value(spec: TensorSpec | None, name: str, part: UploadFile | str) -> Any:
    content = part if isinstance(part, str) else await part.read()
    if spec is None or spec.datatype.name == "BYTES":
        return content
    try:
        return parse(content.encode()) if isinstance(content, str) else npy.read(content)
    except RequestError as error:
        message = f"Input {spec} of a form takes JSON, or a file in NumPy's format .npy. {error.message}"
        raise misfit(name, message) from error
