"""A scripted gRPC server, for streams that Triton itself would not send."""

from __future__ import annotations

import concurrent.futures
import contextlib

import grpc
import numpy as np
from peers import HOST
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc

FLOAT = {"data_type": model_config_pb2.TYPE_FP32, "dims": [-1]}


class StreamingServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Has one model, ``floats``, decoupled or not.

    Args:
        respond: Takes a row and gRPC's context, and yields rows, or strings, which are errors.
    """

    def __init__(self, respond, decoupled=True):
        self._respond = respond
        self._decoupled = decoupled

    def ServerReady(self, request, context):  # noqa: N802  (gRPC's names)
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=True)

    def ModelConfig(self, request, context):  # noqa: N802
        config = model_config_pb2.ModelConfig(
            name="floats",
            max_batch_size=8,
            input=[model_config_pb2.ModelInput(name="x", **FLOAT)],
            output=[model_config_pb2.ModelOutput(name="y", **FLOAT)],
            model_transaction_policy={"decoupled": self._decoupled},
        )
        return service_pb2.ModelConfigResponse(config=config)

    def ModelStreamInfer(self, request_iterator, context):  # noqa: N802
        for request in request_iterator:
            row = np.frombuffer(request.raw_input_contents[0], np.float32)
            for response in self._respond(row, context):
                if isinstance(response, str):
                    yield service_pb2.ModelStreamInferResponse(error_message=response)
                else:
                    yield service_pb2.ModelStreamInferResponse(infer_response=response_of(response))


def response_of(row):
    content = np.asarray(row, np.float32)
    output = {"name": "y", "datatype": "FP32", "shape": [1, len(content)]}
    return service_pb2.ModelInferResponse(outputs=[output], raw_output_contents=[content.tobytes()])


@contextlib.contextmanager
def streaming_server(respond, decoupled=True):
    """Yields its URL, and a function that stops it at once."""
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        server = grpc.server(pool)
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(StreamingServer(respond, decoupled), server)
        port = server.add_insecure_port(f"{HOST}:0")
        server.start()
        yield f"grpc://{HOST}:{port}", lambda: server.stop(0).wait()
        server.stop(0).wait()
