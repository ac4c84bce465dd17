"""The other half of each codec of `pytriton.proxy`: what the backend encodes, and what it decodes."""

from __future__ import annotations

from pytriton.proxy.services.messages import InferenceCall
from pytriton.proxy.wire.encoding import (
    FAILED,
    FINAL,
    RESPONSE,
    MessageReader,
    MessageWriter,
    ProtocolError,
    encode_text,
    signed,
)
from pytriton.proxy.wire.inference import (
    DEFAULT_OPTIONS,
    HAS_PARAMETERS,
    HAS_ROWS,
    IS_TRACED,
    WANTS_GPU,
    BatchMessage,
    RequestFailure,
    RequestOptions,
    ResponseEntry,
    ResponseOutput,
    ResponsesMessage,
    ResultMessage,
    decode_metadata,
    decode_tensors,
)
from pytriton.proxy.wire.registration import RegistrationMessage
from pytriton.proxy.wire.service import InferenceCallInput, InferenceReplyMessage

_METADATA_START = 2


def encode_batch(message: BatchMessage) -> MessageWriter:
    """Encodes a batch's header."""
    writer = MessageWriter()
    words = writer.words
    is_traced = any(metadata.options.trace_context for metadata in message.metadata)
    flags = (
        (HAS_ROWS if message.rows else 0) | (IS_TRACED if is_traced else 0) | (WANTS_GPU if message.wants_gpu else 0)
    )
    words += (0, message.request_count, flags)
    words += message.rows
    writer.columns(message.columns)
    if message.metadata:
        words[_METADATA_START] = len(words)
    for metadata in message.metadata:
        writer.text(metadata.id)
        words.append(-1 if metadata.outputs is None else len(metadata.outputs))
        words += metadata.outputs or ()
        writer.parameters(metadata.parameters)
        _write_options(writer, metadata.options)
    return writer


def _write_options(writer: MessageWriter, options: RequestOptions) -> None:
    if options == DEFAULT_OPTIONS:
        writer.words.append(0)
        return
    correlation_id, *numbers, trace_context = options
    writer.words.append(1)
    writer.words.append(signed(0 if isinstance(correlation_id, str) else correlation_id))
    writer.text(correlation_id if isinstance(correlation_id, str) else "")
    writer.words += map(signed, numbers)
    writer.text(trace_context)


def decode_batch(reader: MessageReader) -> BatchMessage:
    """Decodes a batch's header."""
    metadata_start = reader.word()
    message = decode_tensors(reader)
    if metadata_start:
        if metadata_start != reader.position:
            raise ProtocolError("a batch's metadata is not where the batch says")
        message.metadata += [decode_metadata(reader) for _ in range(message.request_count)]
    return message


def decode_result(reader: MessageReader) -> ResultMessage:
    """Decodes a result's header."""
    request_count, start, end = reader.count(), reader.word(), reader.word()
    failures = [
        RequestFailure(reader.word(), reader.word(), reader.text(), reader.text(), reader.text())
        for _ in range(reader.count())
    ]
    parameters = {reader.word(): reader.parameters() for _ in range(reader.count())}
    return ResultMessage(request_count, start, end, failures, reader.columns(request_count), parameters)


def decode_responses(reader: MessageReader) -> ResponsesMessage:
    """Decodes the header of responses."""
    responses = []
    for _ in range(reader.count()):
        sequence, request, flags, start, end = reader.take(5)
        failure = None
        if flags & FAILED:
            failure = RequestFailure(request, reader.word(), reader.text(), reader.text(), reader.text())
        parameters = reader.parameters() if flags & HAS_PARAMETERS else {}
        outputs = [ResponseOutput(reader.word(), reader.word(), reader.tensor()) for _ in range(reader.count())]
        final, response = bool(flags & FINAL), bool(flags & RESPONSE)
        responses.append(ResponseEntry(sequence, request, final, response, start, end, failure, outputs, parameters))
    return ResponsesMessage(responses)


def encode_registration(message: RegistrationMessage) -> bytes:
    """Encodes a registration."""
    writer = MessageWriter()
    writer.text(message.binding)
    writer.text(message.model)
    writer.words.append(message.version)
    writer.text(message.instance)
    writer.text(message.config)
    return writer.to_bytes()


def encode_reply(message: InferenceReplyMessage) -> MessageWriter:
    """Encodes a reply's header."""
    writer = MessageWriter()
    words = writer.words
    error = message.error
    words.append((FINAL if message.final else 0) | (RESPONSE if message.response else 0) | (FAILED if error else 0))
    if error is not None:
        words.append(error.code)
        writer.text(error.message)
    if message.response:
        writer.text(message.model)
        words.append(message.version)
        writer.text(message.request_id)
        writer.parameters(message.parameters)
        words.append(len(message.outputs))
        for name, datatype, offset, size, shape in message.outputs:
            writer.text(name)
            words += (datatype, offset, size, len(shape))
            words += shape
    return writer


def decode_call(reader: MessageReader) -> tuple[InferenceCall, list[InferenceCallInput]]:
    """Decodes a call's header."""
    model, version, request_id = reader.text(), reader.word(), reader.text()
    flags, priority, timeout_us, number = reader.take(4)
    correlation_id = reader.text() or number & ((1 << 64) - 1)
    batch, preferred_gpu, output_count = reader.word(), encode_text(reader.text()), reader.word()
    outputs = None if output_count < 0 else [reader.text() for _ in range(output_count)]
    parameters = reader.parameters()
    inputs = [InferenceCallInput(reader.text(), reader.word(), reader.tensor()) for _ in range(reader.count())]
    call = InferenceCall(
        model,
        {},
        version,
        outputs,
        request_id,
        correlation_id,
        flags,
        priority,
        timeout_us,
        parameters,
        batch,
        reader.text(),
        preferred_gpu,
    )
    return call, inputs
