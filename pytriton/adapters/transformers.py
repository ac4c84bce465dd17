"""The adapter for pipelines of Hugging Face's transformers."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from typing import Any

import numpy as np

from pytriton.adapters.common import decode, import_library, infer_func_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import ModelDefinition
from pytriton.proxy.types import Array

_TEXT_TASKS = (
    "text-classification",
    "zero-shot-classification",
    "fill-mask",
    "text-generation",
    "text2text-generation",
    "summarization",
    "translation",
)
_IMAGE_TASKS = ("image-classification", "zero-shot-image-classification", "image-to-text")
_AUDIO_TASKS = ("automatic-speech-recognition", "audio-classification", "zero-shot-audio-classification")
_FEATURES = "feature-extraction"

_Samples = Callable[[Array], list[Any]]
_DTYPES = {str: np.dtype(object), bool: np.dtype(bool), int: np.dtype(np.int64), float: np.dtype(np.float32)}


def transformers_model(pipeline: Any, *, max_batch_size: int = 64, **arguments: Any) -> ModelDefinition:
    """Serves a pipeline of Hugging Face's transformers.

    Inputs:
        - ``text``: a string, of shape ``(1,)``.
        - ``image``: an encoded image, such as the content of a PNG file, of shape ``(1,)``.
        - ``audio``: float32 samples at the rate of the pipeline's model.

    Outputs are named as the pipeline names them, such as ``label`` and ``score``, and have one element for each of its
    results. ``feature-extraction`` returns ``features`` of shape ``(tokens, size)``, one text at a time.

    Args:
        pipeline: The result of ``transformers.pipeline``, for classification, generation or feature extraction.
        max_batch_size: Samples that a batch may have.
        **arguments: Passed to each call of the pipeline, such as ``top_k=3`` or ``max_new_tokens=50``.

    Raises:
        PyTritonBadParameterError: It is not a pipeline, its task is not supported, or it fails for a made-up sample.
        ImportError: transformers is not installed.

    Examples:
        >>> sentiment = transformers.pipeline("text-classification")  # doctest: +SKIP
        >>> triton.bind("Sentiment", transformers_model(sentiment, truncation=True))  # doctest: +SKIP
    """
    transformers = import_library("transformers_model", "transformers", package="transformers", extra="transformers")
    if not isinstance(pipeline, transformers.Pipeline):
        raise PyTritonBadParameterError(
            f"transformers_model got an object of type {type(pipeline).__name__}; pass what transformers.pipeline() "
            "returns. A model without a pipeline goes to torch_model."
        )
    name, example, samples_of = _input(pipeline)
    call = functools.partial(_call, pipeline, arguments)
    try:
        outputs = call(samples_of(example))
    except Exception as error:
        raise PyTritonBadParameterError(
            f"transformers_model: the pipeline for {pipeline.task} fails for a made-up {name}: {error}; pass the "
            "arguments that it needs to transformers_model, such as candidate_labels=[...]."
        ) from error
    batching = pipeline.task != _FEATURES
    media_type = "image/*" if name == "image" else None
    shape = (-1,) if name == "audio" else (1,)

    def infer(**inputs: Array) -> dict[str, Array]:
        return call(samples_of(inputs[name]))

    return ModelDefinition(
        infer_func_of(infer, f"A pipeline for {pipeline.task}: {type(pipeline.model).__name__}.", batching),
        [Tensor(shape, example.dtype, name, media_type=media_type)],
        [
            Tensor(array.shape[1:] if batching else (-1, *array.shape[1:]), array.dtype, key)
            for key, array in outputs.items()
        ],
        ModelConfig(batching=batching, max_batch_size=max_batch_size),
    )


def _input(pipeline: Any) -> tuple[str, Array, _Samples]:
    """Returns the name of the input, an example of it, and the function that converts it for the pipeline."""
    task = pipeline.task
    if task in (*_TEXT_TASKS, _FEATURES) or task.startswith("translation"):
        text = pipeline.tokenizer.mask_token if task == "fill-mask" else "text"
        return "text", np.array([[text.encode()]], object), _texts
    if task in _IMAGE_TASKS:
        return "image", np.array([[_blank_image()]], object), _images
    if task in _AUDIO_TASKS:
        return "audio", np.zeros((1, pipeline.feature_extractor.sampling_rate), np.float32), list
    tasks = ", ".join((*_TEXT_TASKS, _FEATURES, *_IMAGE_TASKS, *_AUDIO_TASKS))
    raise PyTritonBadParameterError(
        f"transformers_model does not serve pipelines for {task}, but for {tasks}; bind a function with @batch that "
        "calls this one."
    )


def _texts(array: Array) -> list[str]:
    texts: list[str] = decode(array).ravel().tolist()
    return texts


def _images(array: Array) -> list[Any]:
    image = import_library("transformers_model", "PIL.Image", package="pillow", extra="transformers")
    return [image.open(io.BytesIO(content)) for content in array.ravel()]


def _blank_image() -> bytes:
    image = import_library("transformers_model", "PIL.Image", package="pillow", extra="transformers")
    file = io.BytesIO()
    image.new("RGB", (64, 64)).save(file, "PNG")
    return file.getvalue()


def _call(pipeline: Any, arguments: dict[str, Any], samples: list[Any]) -> dict[str, Array]:
    """Calls the pipeline; returns its results by their names, an array of one row per sample for each."""
    if pipeline.task == _FEATURES:
        features = pipeline(samples[0], return_tensors=True, **arguments)
        return {"features": features[0].float().cpu().numpy()}
    size = len(samples) if _can_pad(pipeline) else 1
    results = pipeline(samples, batch_size=size, **arguments)
    if pipeline.task == "fill-mask" and len(samples) == 1:
        results = [results]  # the results of a single text are not in a list
    rows = [_records(each) for each in results]
    if len({len(row) for row in rows}) > 1:
        raise PyTritonValidationError(f"the pipeline returned {[*map(len, rows)]} results for the texts of one batch")
    return {
        name: np.array([[record[name] for record in row] for row in rows], _DTYPES[type(value)])
        for name, value in rows[0][0].items()
        if type(value) in _DTYPES
    }


def _can_pad(pipeline: Any) -> bool:
    """Returns whether texts of several lengths can form a batch: generation requires padding at the start."""
    tokenizer = pipeline.tokenizer
    if tokenizer is None or pipeline.task in _AUDIO_TASKS:
        return True
    return tokenizer.pad_token_id is not None and (
        pipeline.task != "text-generation" or tokenizer.padding_side == "left"
    )


def _records(result: Any) -> list[dict[str, Any]]:
    """Returns the results for one sample."""
    if isinstance(result, list):
        return result
    if "labels" in result:  # of zero-shot-classification
        pairs = zip(result["labels"], result["scores"], strict=True)
        return [{"label": label, "score": score} for label, score in pairs]
    return [result]
