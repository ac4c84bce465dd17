"""Renders a `Triton` in a notebook: its models, their states, and a request to try for each."""

from __future__ import annotations

import html
import itertools
import json
import math
import shlex
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.tensor import Tensor

NOT_LOADED = "not loaded"

_SAMPLE_SIZE = 3  # size of a variable dimension
_MAX_ELEMENTS = 64  # in an input whose values are written out
_NOT_IN_JSON = ("FP16", "BF16")
_BYTES_LENGTH = 4  # of an empty element of BYTES: only its length prefix

# Colors that stand out from white and from black alike; all else takes its color from the notebook.
_READY = "#2a9d5c"
_WAITING = "#c98a1b"
_FAILED = "#d9534f"
_LINE = "1px solid rgba(128,128,128,.35)"
_ROW = "background:transparent;border:0"
_RULED_ROW = f"background:transparent;border:0;border-bottom:{_LINE}"
_CELL = "padding:.3em .8em;text-align:left;vertical-align:top;border:0"
_PRE = (
    "margin:.4em 0 0;padding:.5em .7em;background:rgba(128,128,128,.14);color:inherit;white-space:pre-wrap;"
    "overflow-wrap:anywhere;user-select:all"
)


class ModelRow(NamedTuple):
    """A row of the table: one version of a model.

    Attributes:
        name: The model's name.
        version: Its version.
        state: Its state as the server reports it, such as ``READY``, with the reason after a colon if there is one; or
            `NOT_LOADED`.
        inputs: A short form of each input, such as ``x: FP32 (-1,)``.
        outputs: Each output, in the same way.
        request: A command line that sends the model a request; empty where there is none to show.
    """

    name: str
    version: int
    state: str
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    request: str = ""


def model_rows(
    specs: Iterable[ModelSpec], states: Mapping[tuple[str, int], str], urls: Sequence[str] = ()
) -> list[ModelRow]:
    """Collects the table's rows, one per model.

    Args:
        specs: The bound models.
        states: The state of each model that the server reports, by name and version. Models that are not bound, from
            the user's own repository, come last.
        urls: Where the server listens. The requests go to the first that starts with ``http://``.

    Returns:
        A row for each version of each model.
    """
    http_url = next((url for url in urls if url.startswith("http://")), None)
    rows = {
        (spec.name, spec.version): ModelRow(
            spec.name,
            spec.version,
            states.get((spec.name, spec.version), NOT_LOADED),
            [_in_short(tensor) for tensor in spec.inputs],
            [_in_short(tensor) for tensor in spec.outputs],
            "" if http_url is None else curl(spec, http_url),
        )
        for spec in specs
    }
    others = [ModelRow(*key, state) for key, state in sorted(states.items()) if key not in rows]
    return [*rows.values(), *others]


def curl(spec: ModelSpec, http_url: str) -> str:
    """Writes a command line that sends a model one request, with small values in the right shapes and datatypes.

    Inputs that are large, and those of a datatype that JSON does not carry, are sent as bytes that are all zero.

    Args:
        spec: The model.
        http_url: Where the server listens, such as ``http://127.0.0.1:8000``.

    Returns:
        One line for a POSIX shell. For a decoupled model, it requests a stream of events. Such a stream carries only
        numbers and strings, so the line is empty if the model has other tensors.

    Examples:
        >>> spec = ModelSpec.create("Double", [Tensor((-1,), "float32", "x")], [Tensor((-1,), "float32", "y")])
        >>> print(curl(spec, "http://127.0.0.1:8000"))  # doctest: +NORMALIZE_WHITESPACE
        curl -s http://127.0.0.1:8000/v2/models/Double/versions/1/infer
          -d '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}'
    """
    if spec.config.decoupled:
        return _curl_stream(spec, http_url)
    shapes = [_sample_shape(tensor, batching=spec.config.batching) for tensor in spec.inputs]
    as_json = all(
        tensor.datatype.name not in _NOT_IN_JSON and math.prod(shape) <= _MAX_ELEMENTS
        for tensor, shape in zip(spec.inputs, shapes, strict=True)
    )
    inputs = []
    zeros = 0
    for tensor, shape in zip(spec.inputs, shapes, strict=True):
        fields: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": shape}
        if as_json:
            inputs.append({**fields, "data": _sample_values(tensor, math.prod(shape))})
        else:
            size = math.prod(shape) * (tensor.datatype.itemsize or _BYTES_LENGTH)
            inputs.append({**fields, "parameters": {"binary_data_size": size}})
            zeros += size
    request: dict[str, Any] = {"inputs": inputs}
    show = ""
    if any(tensor.datatype.name in _NOT_IN_JSON for tensor in spec.outputs):
        request["parameters"] = {"binary_data_output": True}
        show = " -o -"  # by default, curl does not write bytes to a terminal
    text = json.dumps(request, separators=(",", ":"))
    command = f"curl -s {_url(spec, http_url, 'infer')}{show}"
    if as_json:
        return f"{command} -d {shlex.quote(text)}"
    return (
        f"(printf %s {shlex.quote(text)}; head -c {zeros} /dev/zero) | "
        f"{command} -H 'Inference-Header-Content-Length: {len(text)}' --data-binary @-"
    )


def _curl_stream(spec: ModelSpec, http_url: str) -> str:
    if any(
        tensor.datatype.name in _NOT_IN_JSON or tensor.shape not in [(), (1,), (-1,)]
        for tensor in (*spec.inputs, *spec.outputs)
    ):
        return ""
    text = json.dumps({tensor.name: _sample_values(tensor, 1)[0] for tensor in spec.inputs}, separators=(",", ":"))
    return f"curl -sN {_url(spec, http_url, 'generate_stream')} -d {shlex.quote(text)}"


def _url(spec: ModelSpec, http_url: str, endpoint: str) -> str:
    return shlex.quote(f"{http_url}/v2/models/{urllib.parse.quote(spec.name)}/versions/{spec.version}/{endpoint}")


def triton_html(models: Sequence[ModelRow], urls: Sequence[str], alive: bool, ended: str = "") -> str:
    """Renders a `Triton` as HTML, without scripts and external resources.

    Args:
        models: A row for each version of each model, see `model_rows`.
        urls: Where the server listens.
        alive: Whether the server runs.
        ended: How the server exited if it did so unexpectedly, such as ``was killed by SIGKILL``.

    Returns:
        A ``<div>`` that is readable on light and on dark.
    """
    head = f'<div style="margin-bottom:.4em"><strong>Triton</strong> {_headline(models, urls, alive, ended)}</div>'
    body = _table(models) if models else "<div>No model is bound; <code>triton.bind(…)</code> binds one.</div>"
    return f'<div style="color:inherit;max-width:100%;overflow-x:auto">{head}{body}</div>'


def _headline(models: Sequence[ModelRow], urls: Sequence[str], alive: bool, ended: str) -> str:
    if not alive and ended:
        return (
            f"{_dot(_FAILED)} The server is not running: it {html.escape(ended)}. "
            "<code>triton.stop()</code> and <code>triton.run()</code> restart it."
        )
    if not alive:
        return f"{_dot(_FAILED)} The server is not running; <code>triton.run()</code> starts it."
    where = ", ".join(f"<code>{html.escape(url)}</code>" for url in urls)
    text = f"{_dot(_READY)} The server runs{f' on {where}' if where else ''}."
    if any(row.state == NOT_LOADED for row in models):
        text += " <code>triton.run()</code> loads what is not loaded yet."
    return text


def _table(models: Sequence[ModelRow]) -> str:
    titles = ("Model", "Version", "State", "Inputs", "Outputs")
    head = "".join(f'<th scope="col" style="{_CELL};font-weight:600">{title}</th>' for title in titles)
    body = "".join(_row(row, columns=len(titles), unfolded=len(models) == 1) for row in models)
    return (
        '<table style="border-collapse:collapse;color:inherit;margin:0">'
        f'<thead><tr style="{_RULED_ROW}">{head}</tr></thead><tbody>{body}</tbody></table>'
    )


def _row(row: ModelRow, *, columns: int, unfolded: bool) -> str:
    contents = (
        f"<strong>{html.escape(row.name)}</strong>",
        str(row.version),
        f"{_dot(_color(row.state))} {html.escape(row.state)}",
        _lines(row.inputs),
        _lines(row.outputs),
    )
    cells = "".join(f'<td style="{_CELL}">{content}</td>' for content in contents)
    if not row.request:
        return f'<tr style="{_RULED_ROW}">{cells}</tr>'
    # The request has a line of its own beneath: it is long, and the other columns are to stay narrow.
    return (
        f'<tr style="{_ROW}">{cells}</tr>'
        f'<tr style="{_RULED_ROW}"><td colspan="{columns}" style="{_CELL};padding-top:0">'
        f'<details{" open" if unfolded else ""}><summary style="cursor:pointer;opacity:.75">A request to try</summary>'
        f'<pre style="{_PRE}">{html.escape(row.request)}</pre></details></td></tr>'
    )


def _lines(texts: Sequence[str]) -> str:
    return "<br>".join(f'<code style="color:inherit">{html.escape(text)}</code>' for text in texts)


def _dot(color: str) -> str:
    return f'<span aria-hidden="true" style="color:{color}">●</span>'


def _color(state: str) -> str:
    if state.startswith("READY"):
        return _READY
    return _FAILED if state.startswith("UNAVAILABLE") else _WAITING


def _in_short(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.datatype.name} {tensor.shape}{' optional' if tensor.optional else ''}"


def _sample_shape(tensor: Tensor, *, batching: bool) -> list[int]:
    # Triton has no tensors without a dimension: a client sends a scalar with shape (1,).
    shape = [_SAMPLE_SIZE if size == -1 else size for size in tensor.shape] or [1]
    return [1, *shape] if batching else shape


def _sample_values(tensor: Tensor, count: int) -> list[Any]:
    if tensor.datatype.name == "BYTES":
        return [letter for letter, _ in zip(itertools.cycle("abcdefghijklmnopqrstuvwxyz"), range(count), strict=False)]
    if tensor.datatype.name == "BOOL":
        return [index % 2 == 0 for index in range(count)]
    return list(range(1, count + 1))
