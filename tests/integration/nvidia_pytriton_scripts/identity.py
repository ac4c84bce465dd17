"""Serves three models that return what they get: bytes, floats with batches, and without."""

import argparse
import logging

import numpy as np

from pytriton.client import FuturesModelClient, ModelClient
from pytriton.decorators import batch
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

logger = logging.getLogger("identity")


@batch
def identity(**inputs):
    (sequence,) = inputs.values()
    return {"echo": sequence}


def without_batching(requests):
    logger.debug("%d requests", len(requests))
    return [{"out": request["in"], "parameter": np.array([request.parameters.get("k", 1)])} for request in requests]


def main():
    parser = argparse.ArgumentParser()
    for port in ("http", "grpc", "metrics"):
        parser.add_argument(f"--{port}-port", type=int)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.ERROR)

    config = TritonConfig(
        http_port=args.http_port, grpc_port=args.grpc_port, metrics_port=args.metrics_port, log_verbose=0
    )
    with Triton(config=config) as triton:
        triton.bind(
            model_name="Text",
            infer_func=identity,
            inputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
            outputs=[Tensor(name="echo", dtype=bytes, shape=(1,))],
            config=ModelConfig(max_batch_size=16),
        )
        triton.bind(
            model_name="Floats",
            infer_func=identity,
            inputs=[Tensor(dtype=np.float32, shape=(-1,))],
            outputs=[Tensor(name="echo", dtype=np.float32, shape=(-1,))],
            config=ModelConfig(max_batch_size=128, batcher=DynamicBatcher(max_queue_delay_microseconds=1000)),
            strict=True,
        )
        triton.bind(
            model_name="One",
            infer_func=without_batching,
            inputs=[Tensor(name="in", dtype=np.int32, shape=(2, -1))],
            outputs=[
                Tensor(name="out", dtype=np.int32, shape=(2, -1)),
                Tensor(name="parameter", dtype=np.int64, shape=(1,)),
            ],
            config=ModelConfig(batching=False),
        )
        triton.run()
        for scheme, port in (("http", args.http_port), ("grpc", args.grpc_port)):
            url = f"{scheme}://localhost:{port}"
            with ModelClient(url, "Text") as client:
                client.wait_for_model(60)
                result = client.infer_batch(np.char.encode(np.array([["a"], ["grüße"]]), "utf-8"))
                print(scheme, result["echo"].tolist(), result["echo"].shape)
                print(scheme, client.infer_sample(np.array([b"one"]))["echo"].tolist())
                config = client.model_config
                print(scheme, config.model_name, config.max_batch_size, config.batching, config.decoupled)
                print(scheme, [(spec.name, spec.dtype, tuple(spec.shape)) for spec in config.inputs])
            with ModelClient(url, "One") as client:
                for parameters in (None, {"k": 7}):
                    result = client.infer_sample(np.arange(6, dtype=np.int32).reshape(2, 3), parameters=parameters)
                    print(scheme, {name: array.tolist() for name, array in result.items()})
        with FuturesModelClient(f"localhost:{args.http_port}", "Floats", max_workers=4) as client:
            futures = [client.infer_sample(np.full((2,), i, np.float32)) for i in range(8)]
            print([future.result()["echo"].tolist() for future in futures])


if __name__ == "__main__":
    main()
